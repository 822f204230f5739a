/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* quic.h - the connection id of a QUIC packet names its server (draft-ietf-quic-load-balancers-21), or else where its
 * connection has begun does. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "wire/siphash.h"
#include "lb/packet/aes.h"
#include "lb/carrier/carried.h"
#include "lb/carrier/connection_id.h"
#include "lb/state/quic.h"
#include "lb/state/service.h"

/* The number in so many bytes, big-endian; 0: it is no server's. */
inline_always __u16 quic_server(const __u32 *words, __u8 bytes, __u32 ids_count)
{
	__u64 number = ((__u64)words[0] << 32 | words[1]) >> ((64 - 8 * bytes) & 63);

	return number < ids_count ? number : 0;
}

/* One of the four passes back (5.4.2): to is mixed with what from has become. */
inline_always void quic_pass(const struct quic_config *config, struct aes_block *mixed, const __u32 *from, __u32 *to,
			     const __u32 *mask, __u8 number)
{
	for (int i = 0; i < 3; i++)
		mixed->w[i] = from[i];
	mixed->w[3] = (__u32)(config->length - 1) << 8 | number;
	aes_encrypt(&config->key, mixed);
	for (int i = 0; i < 3; i++)
		to[i] ^= mixed->w[i] & mask[i];
}

/* The server's id is in the left half, which takes three of the passes. at: behind the id's first octet. */
inline_always _Bool quic_four_passes(struct xdp_md *ctx, const struct quic_config *config, struct quic_work *work,
				     __u32 at)
{
	if (bpf_xdp_load_bytes(ctx, at + config->length - 1 - config->half, work->right, sizeof(work->right)))
		return 0;
	for (int i = 0; i < 3; i++) {
		work->block.w[i] &= config->left_mask[i];
		work->right[i] = bpf_ntohl(work->right[i]) & config->right_mask[i];
	}
	quic_pass(config, &work->mixed, work->right, work->block.w, config->left_mask, 4);
	quic_pass(config, &work->mixed, work->block.w, work->right, config->right_mask, 3);
	quic_pass(config, &work->mixed, work->right, work->block.w, config->left_mask, 2);
	return 1;
}

/* What the connection id of the packet at `at` says. The only function that reads it. */
__noinline int quic_read(struct xdp_md *ctx, const struct service *service, __u32 at, __u32 quoted,
			 struct carried *carried)
{
	__u32 index = 0;
	struct quic_work *work = bpf_map_lookup_elem(&quic_works, &index);
	const struct quic_config *config;
	struct connection_id id;

	if (!service || !carried || !work)
		return 0;
	id = find_connection_id(ctx, at, quoted, work->head);
	carried->is_long = id.is_long;
	/* No packet is so short that a shorter id ends it. */
	if (!id.at || bpf_xdp_load_bytes(ctx, id.at, work->head, 1) ||
	    bpf_xdp_load_bytes(ctx, id.at + 1, &work->block, sizeof(work->block)))
		return 0;
	if (id.is_long && !quoted && id.length >= QUIC_ID_DRAWN)
		carried->drawn = (work->block.w[0] | (__u64)work->block.w[1] << 32) ?: 1;
	for (int i = 0; i < 4; i++)
		work->block.w[i] = bpf_ntohl(work->block.w[i]);
	index = service->quic_base + (work->head[0] >> 5);
	config = bpf_map_lookup_elem(&quic_configs, &index);
	/* Servers may append bytes (3.4). What a client has drawn may be as long, and names a server once in 8 *
	 * 256^server_bytes / servers, for each key. */
	if (!config || config->algorithm == QUIC_NO_CONFIG ||
	    (id.is_long && (id.length < config->length || id.length > QUIC_ID_MAX)))
		return 0;
	if (config->algorithm == QUIC_SINGLE_PASS)
		aes_decrypt_half(&config->key, &work->block);
	else if (config->algorithm == QUIC_FOUR_PASS && !quic_four_passes(ctx, config, work, id.at + 1))
		return 0;
	carried->older = index != service->quic_base + service->quic_config;
	carried->plain = quic_server(work->block.w, config->server_bytes, service->ids_count);
	return 0;
}

/* Of a connection that begins: keyed by what its client has drawn, so that nobody can aim at the slot of another's. */
inline_always __u64 starting_hash(const struct packet *p, const struct service *service, __u64 drawn)
{
	const struct siphash_state *begun = &service->placement_hash;
	struct siphash_state s = { begun->v0, begun->v1, begun->v2, begun->v3 };

	siphash_first_word(&s, drawn);
	siphash_word(&s, p->source[0] | (__u64)p->source[1] << 32);
	siphash_word(&s, p->source[2] | (__u64)p->source[3] << 32);
	siphash_word(&s, p->source_port | (__u64)p->destination_port << 16 | 28ULL << 56);
	s.v2 ^= 0xff;
	siphash_round(&s);
	siphash_round(&s);
	siphash_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

inline_always __u16 starting_find(__u64 hash)
{
	volatile __u64 *slot = starting_slot(hash);
	__u64 found = slot ? *slot : 0;

	return (found ^ hash) >> 16 ? NO_ID : found;
}

inline_always void starting_commit(__u64 hash, __u16 id)
{
	volatile __u64 *slot = starting_slot(hash);

	if (slot)
		*slot = (hash & ~0xffffULL) | id;
}
