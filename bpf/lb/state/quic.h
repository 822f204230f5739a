/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* quic.h - affinity quic: how a service's servers make connection ids, and where connections that begin have gone. */
#pragma once

#include "wire/kernel.h"
#include "lb/packet/aes.h"

#define QUIC_CONFIGS                                                                \
	8 /* of a service, by the three high bits of an id's first octet; 7 is none \
	     (draft-ietf-quic-load-balancers-21 3.2) */

/* QUIC_NO_CONFIG, or 1 and the number of the algorithm in internal/model. */
enum quic_algorithm { QUIC_NO_CONFIG, QUIC_SINGLE_PASS, QUIC_FOUR_PASS, QUIC_PLAIN };

struct quic_config {
	struct aes_key key; /* single pass: to decrypt; four passes: to encrypt */
	__u32 left_mask[3], right_mask[3]; /* four passes: the bits of the halves, as big-endian words */
	__u8 algorithm;
	__u8 length; /* of the whole id */
	__u8 server_bytes; /* of the server's id, 1 to 8 */
	__u8 half; /* four passes: bytes of each half */
};
_Static_assert(sizeof(struct quic_config) == 204, "quic_config");

/* Index: service->quic_base + config. Immutable once a row names them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, QUIC_CONFIGS); /* set by user space at load time */
	__type(key, __u32);
	__type(value, struct quic_config);
} quic_configs SEC(".maps");

/* What reading an id needs, off the stack. */
struct quic_work {
	struct aes_block block, mixed;
	__u32 right[3];
	__u8 head[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quic_work);
} quic_works SEC(".maps");

/* Connections whose client does not know an id of the server's yet: upper 48 bits of their hash | id of the server. A
 * later one replaces it: it matters for one round trip, and a client that loses it begins again at another server,
 * which costs round trips and no connection. Index: lower 16 bits. */
#define STARTING 65536
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STARTING);
	__type(key, __u32);
	__type(value, __u64);
} starting SEC(".maps");

inline_always __u64 *starting_slot(__u64 hash)
{
	__u32 index = hash & (STARTING - 1);

	return bpf_map_lookup_elem(&starting, &index);
}
