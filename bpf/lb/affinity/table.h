/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* table.h - Cheetah III-B: the index in the cookie leads to the connection's entry: statistics, limits, suspicion.
 *
 * Called for packets whose cookie is valid: the server is known without an entry. One is made for the first packet
 * after the handshake (departs from Cheetah, which makes it at the SYN and so lets a SYN flood fill the table), and the
 * packet itself carries its index to the server: the cookie in its TSecr is now the one that the server shall write
 * from here on.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/mix.h"
#include "wire/parse.h"
#include "lb/state/connections.h"
#include "lb/state/service.h"

/* Implementation constants */
#define TABLE_OWNER ((1ULL << 48) - 1) /* of connection_owner.word: port, check and id, which never change */
#define TABLE_TRIES 4 /* to win a bit from other CPUs before the partition counts as full */
#define TABLE_BYTES ((1ULL << 48) - 1) /* of connection.bytes; what is above counts packets in the window */
#define TABLE_WINDOW_BITS 10 /* of connection.last */
#define ASSIGNMENT_TIME (1 << TABLE_WINDOW_BITS) /* for so long an assignment keeps its slot */

/* A flow, as its service's table stores it. */
struct table_flow {
	__u64 hash;
	__u64 owner; /* what connection_owner says of it: all but what changes */
	__be32 client; /* as in struct connection */
	__u32 base; /* the entry that index 0 of its partition would be */
};

inline_always void table_flow_of(struct table_flow *f, const struct packet *p, const struct service *service, __u16 id)
{
	__u32 index_bits = service->index_bits & 7;
	__u64 partitions = (__u64)service->table_blocks << ((BLOCK_BITS - index_bits) & 7);

	f->hash = placement_mix(&service->placement_key, p);
	f->owner = p->source_port | (__u32)f->hash << 16 | (__u64)id << 32;
	f->client = p->ipv6 ? (__u32)(f->hash >> 16) : p->source[0];
	f->base = (service->table_base << BLOCK_BITS) + ((__u32)((f->hash >> 32) * partitions >> 32) << index_bits);
}

inline_always struct connection *table_entry(__u32 entry)
{
	return bpf_map_lookup_elem(&connections, &entry);
}

inline_always __u32 connection_state(union connection_owner owner)
{
	return owner.word >> 48 & 15;
}

inline_always _Bool table_is_of(const struct connection *c, const struct table_flow *f)
{
	union connection_owner owner = { .word = *(const volatile __u64 *)&c->owner.word };

	return (owner.word & TABLE_OWNER) == f->owner && c->client == f->client && connection_state(owner);
}

/* The index that the cookie has from this node; 0: none. */
inline_always __u32 table_index(const struct service *service, __u16 plain)
{
	__u32 tag = plain >> (service->id_bits & 15);

	return tag >> (service->index_bits & 7) == service->node ? tag & ((1u << (service->index_bits & 7)) - 1) : 0;
}

/* The entry that the cookie names, if it is this connection's and not what another one, or this one long ago, had
 * there. */
inline_always struct connection *table_find(const struct service *service, const struct table_flow *f, __u16 plain)
{
	__u32 index = table_index(service, plain);
	struct connection *c = index ? table_entry(f->base + index) : 0;

	return c && table_is_of(c, f) ? c : 0;
}

/* Returns whether the packet is within the service's limit. */
inline_always _Bool table_count(struct connection *c, const struct service *service, __u32 length)
{
	__u32 now = connection_clock();
	__u64 bytes = c->bytes;
	_Bool within = 1;

	if (service->packet_limit) {
		if (now >> TABLE_WINDOW_BITS != c->last >> TABLE_WINDOW_BITS)
			bytes &= TABLE_BYTES;
		within = bytes >> 48 < service->packet_limit;
		if (within)
			bytes += TABLE_BYTES + 1;
	}
	c->bytes = bytes + length;
	c->packets++;
	c->last = now;
	return within;
}

/* What nearly all packets of a connection are: nothing about the entry changes but its counters. */
inline_always _Bool table_is_fast(const struct connection *c, const struct packet *p)
{
	return (c->owner.word >> 48 & 0xff) == CONNECTION_OPEN &&
	       !(p->tcp_flags & (TCP_FLAG_FIN_BIT | TCP_FLAG_RST_BIT));
}

/* Takes one of the bits in mask. 0: none was left, or others were faster each time. */
inline_always __u64 table_take_bit(__u64 *word, __u64 mask)
{
	for (int i = 0; i < TABLE_TRIES; i++) {
		__u64 left = *(volatile __u64 *)word & mask, bit = left & -left;

		if (!bit)
			return 0;
		if (__sync_fetch_and_and(word, ~bit) & bit)
			return bit;
	}
	return 0;
}

/* The index was taken from a connection that had ended. */
static __noinline int table_log_ended(const struct connection *c, __u64 owner, __u32 service, __u32 entry)
{
	const struct connection_address *address = bpf_map_lookup_elem(&connection_addresses, &entry);
	struct ended_connection *ended;

	if (!c || !address)
		return 0;
	ended = bpf_ringbuf_reserve(&ended_connections, sizeof(*ended), 0);
	if (!ended) {
		__sync_fetch_and_add(&log_lost, 1);
		return 0;
	}
	__builtin_memcpy(&ended->connection, c, sizeof(*c));
	ended->connection.owner.word = owner;
	__builtin_memcpy(ended->client, address->client, sizeof(ended->client));
	ended->service = service;
	ended->entry = entry;
	bpf_ringbuf_submit(ended, 0);
	return 0;
}

/* Gives the flow a free index of its partition, or one that its last owner has done with. 0: there is none. *entry says
 * which. */
inline_always struct connection *table_add(const struct packet *p, const struct service *service,
					   const struct table_flow *f, __u32 *entry)
{
	__u32 index_bits = service->index_bits & 7, at = f->base >> BLOCK_BITS;
	__u64 mask = (index_bits == BLOCK_BITS ? 0 : 1ULL << (1 << index_bits)) - 1, bit;
	struct connection_block *block = bpf_map_lookup_elem(&connection_blocks, &at);
	struct connection_address *address;
	union connection_owner before, owner = {};
	struct connection *c;

	if (!block)
		return 0;
	mask <<= f->base & 63;
	bit = table_take_bit(&block->free, mask);
	if (!bit)
		bit = table_take_bit(&block->ended, mask);
	if (!bit)
		return 0;
	*entry = (at << BLOCK_BITS) + __builtin_ctzll(bit);
	c = table_entry(*entry);
	address = bpf_map_lookup_elem(&connection_addresses, entry);
	if (!c || !address) /* the maps are of one size */
		return 0;
	before.word = c->owner.word;
	owner.word = f->owner | (__u64)CONNECTION_NEW << 48 | (before.word & 0xffULL << 56) + (1ULL << 56);
	before.word = __sync_lock_test_and_set(&c->owner.word, before.word & 0xffULL << 56);
	if (connection_state(before) && log_ended)
		table_log_ended(c, before.word, service->number, *entry);
	if (is_suspect(p, service))
		owner.word |= (__u64)CONNECTION_SUSPECT << 52;
	c->client = f->client;
	c->packets = 0;
	c->bytes = 0;
	c->last = connection_clock();
	c->first = c->last >> TABLE_WINDOW_BITS;
	if (p->ipv6)
		__builtin_memcpy(address->client, p->source, sizeof(address->client));
	__sync_lock_test_and_set(&c->owner.word, owner.word);
	return c;
}

/* FIN and RST: the index may be taken by others from here on. Who changes the state gives it up, once. */
inline_always void table_end(struct connection *c, __u32 entry, const struct table_flow *f, __u8 tcp_flags)
{
	__u64 state = tcp_flags & TCP_FLAG_RST_BIT ? CONNECTION_RESET : CONNECTION_FINISHED;
	union connection_owner before = { .word = *(volatile __u64 *)&c->owner.word };
	__u32 at = entry >> BLOCK_BITS;
	struct connection_block *block = bpf_map_lookup_elem(&connection_blocks, &at);

	if (!block || (before.word & TABLE_OWNER) != f->owner || connection_state(before) >= state ||
	    !connection_state(before))
		return;
	if (__sync_val_compare_and_swap(&c->owner.word, before.word, (before.word & ~(15ULL << 48)) | state << 48) !=
	    before.word)
		return; /* another CPU was faster, and FIN and RST are sent again when they matter */
	if (connection_state(before) < CONNECTION_FINISHED)
		__sync_fetch_and_or(&block->ended, 1ULL << (entry & 63));
}
