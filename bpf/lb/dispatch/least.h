/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* least.h - fewest open connections for its weight; of equals, whose turn it is.
 *
 * It looks at whose turn it is and at the least loaded of each group: that is exact among up to LOAD_GROUPS servers,
 * and among more load balancing with memory (Mitzenmacher, Prabhakar, Shah, FOCS 2002). So its cost has a bound.
 */
#pragma once

#include "wire/kernel.h"
#include "lb/state/least_loaded.h"
#include "lb/state/loads.h"
#include "lb/state/rounds.h"
#include "lb/state/service.h"

/* Without a branch, which the CPU would have to guess. */
inline_always __s64 lower_rank(__s64 a, __s64 b)
{
	__s64 mask = (b - a) >> 63;

	asm volatile("" : "+r"(mask)); /* clang would make a branch of it */
	return a + ((b - a) & mask);
}

/* In four chains, which the CPU can follow at once. */
inline_always __s64 lowest_rank(const struct least_loaded *all)
{
	__s64 a = all->ranks[0], b = all->ranks[1], c = all->ranks[2], d = all->ranks[3];

#pragma unroll
	for (__u32 i = 4; i < LOAD_GROUPS; i += 4) {
		a = lower_rank(a, all->ranks[i]);
		b = lower_rank(b, all->ranks[i + 1]);
		c = lower_rank(c, all->ranks[i + 2]);
		d = lower_rank(d, all->ranks[i + 3]);
	}
	return lower_rank(lower_rank(a, b), lower_rank(c, d));
}

/* rounds: turns by weight; then one for each id, 0 where it may not get new connections. */
inline_always int dispatch_by_least(const struct service *service, __u32 number)
{
	struct least_loaded *all;
	__u32 round;
	__s64 cost, best;
	__u64 turn;

	round = service->rounds_count - service->id_turns;
	all = least_loaded_of(service);
	if (!round || !all)
		return NO_ID;
	turn = round_word(service, number % round);
	cost = cost_of(turn);
	least_loaded_update(all, turn, cost);
	best = lowest_rank(all);
	return best >> 16 < cost ? turn_id(best) : turn_id(turn);
}

/* The same, called, for programs whose stack has no room for it. */
__noinline int call_dispatch_by_least(const struct service *service, __u32 number)
{
	return service ? dispatch_by_least(service, number) : NO_ID;
}
