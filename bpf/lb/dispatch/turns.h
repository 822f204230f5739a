/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* turns.h - rr, wrr and awrr: the next of a sequence that user space wrote (weights are repetitions, well spread; Cheetah IV-B). */
#pragma once

#include "wire/kernel.h"
#include "lb/state/rounds.h"
#include "lb/state/service.h"

/* Where a CPU is in the sequence of a service. */
struct place {
	__u32 turn; /* 0: nowhere yet */
};
_Static_assert(sizeof(struct place) == 4, "place");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERVICE_NUMBERS);
	__type(key, __u32);
	__type(value, struct place);
} turns SEC(".maps");

inline_always struct place *place_in_turns(const struct service *service)
{
	__u32 number = service->number;

	return bpf_map_lookup_elem(&turns, &number);
}

/* Whose turn it is; it is taken by place->turn++. Each CPU of each node begins at a place of its own: together they would all start with the same
 * server. */
inline_always __u64 next_turn(const struct service *service, struct place *place, __u32 count)
{
	if (!place->turn)
		place->turn = bpf_get_prandom_u32();
	return round_word(service, place->turn % count);
}

inline_always __u16 dispatch_by_turns(const struct service *service, struct place *place)
{
	if (!place || !service->rounds_count)
		return NO_ID;
	return turn_id(next_turn(service, place, service->rounds_count));
}
