/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* deferred.h - packets that each CPU has sent and not counted yet (lb/affinity/deferred.h). */
#pragma once

#include "wire/kernel.h"

/* Implementation constants */
#define DEFERRED_MAX 16
#define UNSETTLED 4096

struct deferred {
	__u64 hash, owner; /* of the flow, as in struct table_flow */
	__be32 client;
	__u32 entry;
	__u64 length;
};
_Static_assert(sizeof(struct deferred) == 32, "deferred");

struct deferred_list {
	__u64 tick; /* of their arrival */
	__u32 clock; /* of their arrival, as in struct connection */
	__u32 count;
	struct deferred at[DEFERRED_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct deferred_list);
} deferred_lists SEC(".maps");

/* May packets be counted later? */
volatile __u32 deferred_enabled;

/* Connections whose next packet must read its entry at once: bits 48-63 of their hashes, at bits 16-27. */
__u16 unsettled[UNSETTLED];

inline_always void unsettle(__u64 hash)
{
	unsettled[hash >> 16 & (UNSETTLED - 1)] = hash >> 48 | 1;
}

/* Returns whether the connection, or another one with the same bits, was unsettled; it is no longer. */
inline_always _Bool settle(__u64 hash)
{
	__u16 *slot = &unsettled[hash >> 16 & (UNSETTLED - 1)];

	if (*slot != (hash >> 48 | 1))
		return 0;
	*slot = 0;
	return 1;
}
