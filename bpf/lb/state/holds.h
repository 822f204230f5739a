/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* holds.h - session tls: segments of ClientHellos that are not all there yet. Bounded, and none authoritative: what is
 * lost the client sends again.
 *
 * A slot is its owner's from the compare-and-swap of `busy` on until busy is 0 again. Who finds it taken goes without.
 */
#pragma once

#include "wire/kernel.h"
#include "lb/state/node.h"

/* Implementation constants */
#define HOLDS 512 /* a power of two: two slots for each hash */
#define HOLD_PIECES 8
#define HOLD_HEADERS_MOST 100 /* of IPv6 and TCP with all options */
#define HOLD_DATA_MOST 1536 /* of a segment */
#define HOLD_STALE_MS 2000
#define HOLD_DETOUR_TIME 2 /* in 2^BEGUN_SHIFT ns: what follows a released hello must not overtake it */

struct held_piece {
	__u32 sequence; /* of its first byte */
	__u16 length; /* bytes of data */
	__u16 headers; /* bytes of IP and TCP headers */
	__be32 timestamp; /* TSval, and where in header it is: so is the checksum */
	__sum16 checksum;
	__u8 timestamp_at, checksum_at;
	__u8 header[HOLD_HEADERS_MOST];
	__u8 data[HOLD_DATA_MOST];
};

struct hold {
	struct connection_key key;
	__u32 busy;
	__u32 base; /* sequence number of the hello's first byte */
	__u32 last_ms;
	__u32 oldest; /* TSval of the pieces */
	__u16 generation; /* of the slot: another one for each hello */
	__u8 pieces;
	_Bool based; /* base is known */
	/* Where to, once it is known. */
	__u32 ifindex; /* 0: it is not */
	__u16 front; /* bytes before the inner IP header */
	__u16 mtu;
	__u8 source_mac[6];
	__be16 protocol; /* behind the MAC addresses */
	__u8 order[HOLD_PIECES]; /* in which pieces follow each other */
	__u32 ordered; /* how many do */
	struct held_piece piece[HOLD_PIECES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HOLDS);
	__type(key, __u32);
	__type(value, struct hold);
} holds SEC(".maps");

/* By slot: of the flow's hash, if segments are there and the first is not. Small, so that hellos that come whole need
 * not look into slots. */
volatile __u32 holds_waiting[HOLDS];

inline_always _Bool hold_waits(__u64 hash)
{
	__u32 slot = hash >> 48 & (HOLDS - 2);

	return holds_waiting[slot] == (__u32)hash || holds_waiting[slot + 1] == (__u32)hash;
}

#define HOLDS_BEGUN 65536 /* a power of two */

/* By the flow's hash: a tag of the hello whose first segment was held last. One that comes again and finds its slot
 * gone was pushed out. */
volatile __u16 holds_begun[HOLDS_BEGUN];

inline_always __u16 hold_tag(__u64 hash, __u32 sequence)
{
	return (__u16)(hash ^ sequence ^ sequence >> 16) | 1;
}

inline_always void hold_note_begun(__u64 hash, __u32 sequence)
{
	holds_begun[hash >> 32 & (HOLDS_BEGUN - 1)] = hold_tag(hash, sequence);
}

inline_always _Bool hold_has_begun(__u64 hash, __u32 sequence)
{
	return holds_begun[hash >> 32 & (HOLDS_BEGUN - 1)] == hold_tag(hash, sequence);
}

inline_always _Bool hold_take(struct hold *h)
{
	return !__sync_val_compare_and_swap(&h->busy, 0, 1);
}

inline_always void hold_leave(struct hold *h)
{
	__sync_val_compare_and_swap(&h->busy, 1, 0);
}

inline_always _Bool hold_is_of(const struct hold *h, const struct connection_key *key)
{
	const __u64 *a = (const void *)&h->key, *b = (const void *)key;

	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2];
}

/* The slot of a connection, or the one that it gets: what is older goes. */
static __noinline __u32 hold_slot(const struct connection_key *key, __u32 hash, __u32 now)
{
	__u32 one = hash & (HOLDS - 2), other = one + 1;
	const struct hold *a = bpf_map_lookup_elem(&holds, &one), *b = bpf_map_lookup_elem(&holds, &other);

	if (!a || !b)
		return HOLDS;
	if (hold_is_of(a, key))
		return one;
	if (hold_is_of(b, key))
		return other;
	return now - a->last_ms >= now - b->last_ms ? one : other;
}
