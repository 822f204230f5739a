/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* connections.h - Cheetah III-B: ConnTable, and in place of ConnStack one word of free indices per block of 64.
 *
 * A service has a range of blocks, cut into partitions of 2^r entries, r <= 6; the flow's hash names the partition, the
 * cookie the index in it. Index 0 is never used: it stands for "has no entry". Of each index exactly one holds at any
 * time:
 *
 *   free       its bit in block.free is set
 *   ended      its bit in block.ended is set: FIN or RST was seen; may be taken at once, and is swept after a while
 *   held       by the CPU that took one of those bits (its atomic operation returned it set), or by a connection:
 *              owner has a state
 *
 * A connection gives its index up by one compare-and-swap of owner. So no index is ever held twice or lost, on any
 * number of CPUs, and every step takes a bounded number of instructions. User space sweeps by the same rules, in the
 * same memory.
 *
 * Nothing here is authoritative: the cookie also carries the server's id. Whatever is lost, wrong or full costs a
 * connection its statistics, never its server. Departs from Cheetah, where the entry alone knows the server.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/state/service.h"

/* Implementation constants */
#define BLOCK_BITS 6
#define ASSIGNMENTS 65536

enum connection_state {
	CONNECTION_NONE,
	CONNECTION_NEW, /* its server has not been seen to use the index */
	CONNECTION_OPEN,
	CONNECTION_FINISHED, /* the client sent FIN */
	CONNECTION_RESET, /* the client sent RST */
};

enum connection_flag { CONNECTION_SUSPECT = 1 }; /* its packets visit the scrubber first */

/* CONNECTION_NONE: nobody; all but the generation is 0 then. One word, so that it changes as a whole. */
union connection_owner {
	__u64 word;
	struct {
		__be16 client_port;
		__u16 check; /* of the flow's hash: the rest of what tells flows apart */
		__u16 id; /* server */
		__u8 state : 4, flags : 4;
		__u8 generation; /* of the index: another one for each connection */
	};
};
_Static_assert(sizeof(union connection_owner) == 8, "connection_owner");

/* Counters are those of one CPU at a time, as devices give the packets of a flow to one queue; where they do not, some
 * are lost. */
struct connection {
	union connection_owner owner;
	__be32 client; /* IPv4: the address. IPv6: of the flow's hash; the address is in connection_addresses */
	__u32 packets;
	__u64 bytes; /* bits 0-47: bytes of IP packets. bits 48-63: packets in the window of `last`, up to the service's
			limit */
	__u32 first; /* when it came, in 2^30 ns of CLOCK_MONOTONIC */
	__u32 last; /* packet, in 2^20 ns; a window is 2^10 of these */
};
_Static_assert(sizeof(struct connection) == 32, "connection");

struct connection_block {
	__u64 free, ended;
};
_Static_assert(sizeof(struct connection_block) == 16, "connection_block");

struct connection_address {
	__be32 client[4];
};

/* max_entries of the three are set by user space: 64 entries to a block. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1048576);
	__type(key, __u32);
	__type(value, struct connection);
} connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct connection_block);
} connection_blocks SEC(".maps");

/* Of IPv6 clients; written once per connection, never read by packets. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1048576);
	__type(key, __u32);
	__type(value, struct connection_address);
} connection_addresses SEC(".maps");

/* Connections whose server does not use its index yet: until an echo shows it, later packets must find the same entry.
 * flow's hash << 32 | entry. A flow whose slot another one has waits for its next packet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ASSIGNMENTS);
	__type(key, __u32);
	__type(value, __u64);
} assignments SEC(".maps");

/* Clients whose new entries are suspect. Service number and address; the prefix counts the number's 32 bits. */
struct suspect_key {
	__u32 prefix_length;
	__u32 service;
	__be32 client[4];
};
_Static_assert(sizeof(struct suspect_key) == 24, "suspect_key");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct suspect_key);
	__type(value, __u32);
} suspects SEC(".maps");

inline_always _Bool is_suspect(const struct packet *p, const struct service *service)
{
	struct suspect_key key = { .prefix_length = 32 + (p->ipv6 ? 128 : 32), .service = service->number };

	if (!service->scrubber)
		return 0;
	__builtin_memcpy(key.client, p->source, sizeof(key.client));
	return bpf_map_lookup_elem(&suspects, &key) != 0;
}

/* Connections that the data path ended because it needed their index; those that are swept, user space sees itself. */
struct ended_connection {
	struct connection connection;
	__be32 client[4]; /* IPv6 */
	__u32 service; /* number */
	__u32 entry;
};
_Static_assert(sizeof(struct ended_connection) == 56, "ended_connection");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} ended_connections SEC(".maps");

/* Does somebody keep a log of ended connections? */
volatile __u32 log_ended;
/* That found no room in ended_connections. */
__u64 log_lost;

/* 2^20 ns */
inline_always __u32 connection_clock(void)
{
	return bpf_ktime_get_coarse_ns() >> 20;
}
