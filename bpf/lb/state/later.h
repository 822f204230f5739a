/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* later.h - packets that each CPU has sent and not counted yet, for lb/affinity/later.h. */
#pragma once

#include "wire/kernel.h"

/* Implementation constants */
#define LATER 16
#define UNSETTLED 4096

struct later {
	__u64 hash, owner; /* of the flow, as in struct table_flow */
	__be32 client;
	__u32 entry;
	__u64 length;
};
_Static_assert(sizeof(struct later) == 32, "later");

struct later_list {
	__u64 tick; /* in which they came */
	__u32 clock; /* in which they came, as in struct connection */
	__u32 count;
	struct later at[LATER];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct later_list);
} later_lists SEC(".maps");

/* Do packets wait to be counted? */
volatile __u32 later_enabled;

/* Connections whose next packet must look at its entry at once: bits 48-63 of their hashes, at bits 16-27. */
__u16 unsettled[UNSETTLED];

inline_always void unsettle(__u64 hash)
{
	unsettled[hash >> 16 & (UNSETTLED - 1)] = hash >> 48 | 1;
}

/* Returns whether the connection was unsettled, or another one that looks like it; it is no longer. */
inline_always _Bool settle(__u64 hash)
{
	__u16 *place = &unsettled[hash >> 16 & (UNSETTLED - 1)];

	if (*place != (hash >> 48 | 1))
		return 0;
	*place = 0;
	return 1;
}
