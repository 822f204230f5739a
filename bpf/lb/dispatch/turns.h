/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* turns.h - rr, wrr and awrr: the next of a sequence that user space wrote (weights are repetitions, well spread;
 * Cheetah IV-B).
 *
 * The CPUs of a node share one counter for each service: with a counter for each CPU, servers would differ by as many
 * connections as there are CPUs. A turn is taken once, when a packet is steered, and nobody else gets it. If the fast
 * path gives the packet up then, the slow path gets the turn that it kept.
 */
#pragma once

#include "wire/kernel.h"
#include "lb/state/rounds.h"
#include "lb/state/service.h"

/* A node's position in the sequence of a service. CPUs that write to one cache line wait for each other: services do
 * not share one. */
struct cursor {
	__u32 turn; /* 0: none yet */
	__u32 unused[15];
};
_Static_assert(sizeof(struct cursor) == 64, "cursor");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICE_NUMBERS);
	__type(key, __u32);
	__type(value, struct cursor);
} turns SEC(".maps");

/* What the fast path took for a packet that it gave up. */
struct kept_turn {
	__u32 service; /* its number; 0: none is kept */
	__u32 turn;
};
_Static_assert(sizeof(struct kept_turn) == 8, "kept_turn");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kept_turn);
} kept_turns SEC(".maps");

inline_always void keep_turn(const struct service *service, __u32 turn)
{
	__u32 first = 0;
	struct kept_turn *kept = bpf_map_lookup_elem(&kept_turns, &first);

	if (kept)
		*kept = (struct kept_turn){ service->number, turn };
}

/* A node begins at a random turn, far from the end of the numbers: else all nodes would start with the same server. If
 * another CPU takes the second turn meanwhile, the node has begun at 0. */
inline_always __u32 take_turn(const struct service *service)
{
	__u32 number = service->number, turn, random;
	struct cursor *cursor = bpf_map_lookup_elem(&turns, &number);

	if (!cursor)
		return 0;
	turn = __sync_fetch_and_add(&cursor->turn, 1);
	if (turn)
		return turn;
	random = (bpf_get_prandom_u32() >> 1) + 1; /* a turn of 0 is none */
	return __sync_val_compare_and_swap(&cursor->turn, 1, random + 1) == 1 ? random : turn;
}

/* For a packet that the fast path may have given up. */
inline_always __u32 take_turn_again(const struct service *service)
{
	__u32 first = 0;
	struct kept_turn *kept = bpf_map_lookup_elem(&kept_turns, &first);

	if (!kept || kept->service != service->number)
		return take_turn(service);
	kept->service = 0;
	return kept->turn;
}

inline_always __u16 dispatch_by_turns(const struct service *service, __u32 turn)
{
	if (!service->rounds_count)
		return NO_ID;
	return turn_id(round_word(service, turn % service->rounds_count));
}
