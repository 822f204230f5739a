/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* replicas.h - Anolis: the entries of replicated connections.
 *
 *   replica_entries   buckets of entries of chains that this node is in
 *   replica_answers   the same of other answers
 *
 * Both are shared by packets on all CPUs and by user space, which expires and copies them (internal/linux/replicas), by
 * these rules:
 *
 * A bucket has seven slots. head has a bit for each used one, and above them a number that grows with every change of
 * those bits. To use a slot, a CPU compares and swaps the head of the key's *first* bucket after reading both of the
 * key's: of two that insert the same key, one sees the other. A used slot with key 0 is being filled; its word is
 * written before its key. Only user space removes: it swaps the word for 0, writes REPLICA_REMOVED for the key, waits
 * until all packets that may have seen it have left the data path, and then frees the slot. So a key that was found is
 * followed by its own word or by 0, whatever happens meanwhile. All other changes of an entry are one compare-and-swap
 * of its word.
 */
#pragma once

#include "wire/kernel.h"

/* Implementation constants */
#define REPLICA_TRIES 8 /* to put in an entry, before others are in the way for too long */
#define REPLICA_USED 0xfeULL /* bits of head */
#define REPLICA_CHANGE 0x100ULL /* adds one to the number of changes */
#define REPLICA_REMOVED 1

enum replica_flag {
	REPLICA_CACHEABLE = 1, /* may be answered from */
	REPLICA_DISPATCHED = 2, /* an answer: this node has dispatched the connection */
};

/* key 0: nobody's, or being filled. The word: 0, or owner (16 bits), number of its service here or 0 (16), period in
 * which it was used last (24), flags (8). */
struct replica_entry {
	__u64 key, word;
};

struct replica_bucket {
	__u64 head, pad;
	struct replica_entry slot[7];
};
_Static_assert(sizeof(struct replica_bucket) == 128, "replica_bucket");

/* max_entries of both are set by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct replica_bucket);
} replica_entries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct replica_bucket);
} replica_answers SEC(".maps");

/* What user space puts in: as many as have a key. Each process's own: it is not pinned. */
#define REPLICA_BATCH 256
struct replica_insertion {
	__u64 key, word; /* then: what is there */
	__u32 into; /* 0: replica_entries, 1: replica_answers */
	__u32 result; /* enum replica_insert */
};
_Static_assert(sizeof(struct replica_insertion) == 24, "replica_insertion");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, REPLICA_BATCH);
	__type(key, __u32);
	__type(value, struct replica_insertion);
} replica_batch SEC(".maps");

/* The content of an answer, for the program that handles its packet next. */
struct replica_answer {
	__u16 owner; /* 0: unknown */
	__u16 proposed;
	__u8 flags; /* enum peer_flag */
	__u8 full; /* a table has no room for it */
	__u16 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct replica_answer);
} received_answer SEC(".maps");

/* Of each of the two tables. Set at load time. */
const volatile __u32 replica_buckets = 1;

#define REPLICA_PERIOD_SHIFT 32
#define REPLICA_FLAGS_SHIFT 56

inline_always __u64 replica_word(__u16 owner, __u16 service, __u32 period, __u8 flags)
{
	return owner | (__u64)service << 16 | (__u64)(period & 0xffffff) << REPLICA_PERIOD_SHIFT |
	       (__u64)flags << REPLICA_FLAGS_SHIFT;
}

inline_always __u8 replica_flags(__u64 word)
{
	return word >> REPLICA_FLAGS_SHIFT;
}

inline_always _Bool replica_is_of_period(__u64 word, __u32 period)
{
	return !(((word >> REPLICA_PERIOD_SHIFT) ^ period) & 0xffffff);
}
