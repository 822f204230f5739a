/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* draws.h - random numbers without a call, which would cost as much as all the rest of a policy. */
#pragma once

#include "wire/kernel.h"

/* A linear congruential generator for each CPU (Knuth, MMIX). The upper half of its state is drawn: who sees which
 * server a connection gets may guess the next, as with the kernel's own. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} draws SEC(".maps");

inline_always __u32 draw(void)
{
	__u32 first = 0;
	__u64 *state = bpf_map_lookup_elem(&draws, &first), now;

	if (!state)
		return 0;
	now = *state;
	if (!now)
		now = (__u64)bpf_get_prandom_u32() << 32 | 1;
	*state = now * 6364136223846793005 + 1442695040888963407;
	return now >> 32;
}
