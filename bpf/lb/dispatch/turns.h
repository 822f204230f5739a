/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* turns.h - rr, wrr and awrr: the next of a sequence that user space wrote (weights are repetitions, well spread;
 * Cheetah IV-B). */
#pragma once

#include "wire/kernel.h"
#include "lb/state/rounds.h"
#include "lb/state/service.h"

/* A CPU's position in the sequence of a service. */
struct cursor {
	__u32 turn; /* 0: none yet */
};
_Static_assert(sizeof(struct cursor) == 4, "cursor");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERVICE_NUMBERS);
	__type(key, __u32);
	__type(value, struct cursor);
} turns SEC(".maps");

inline_always struct cursor *cursor_of(const struct service *service)
{
	__u32 number = service->number;

	return bpf_map_lookup_elem(&turns, &number);
}

/* The next turn; cursor->turn++ takes it. Each CPU of each node begins at random: else all would start with the same
 * server. */
inline_always __u64 next_turn(const struct service *service, struct cursor *cursor, __u32 count)
{
	if (!cursor->turn)
		cursor->turn = bpf_get_prandom_u32();
	return round_word(service, cursor->turn % count);
}

inline_always __u16 dispatch_by_turns(const struct service *service, struct cursor *cursor)
{
	if (!cursor || !service->rounds_count)
		return NO_ID;
	return turn_id(next_turn(service, cursor, service->rounds_count));
}
