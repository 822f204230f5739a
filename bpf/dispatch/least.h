/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* least.h - fewest open connections for its weight; of equals, whose turn it is.
 *
 * Exact among up to LEAST_LOOKS servers. Among more it looks at the next few of a rotation and once more at the lightest that it did
 * not choose the last time: load balancing with memory (Mitzenmacher, Prabhakar, Shah, FOCS 2002). So the cost has a bound.
 */
#pragma once

#define LEAST_LOOKS 16

/* rounds: the turns by weight, then `members` words, everybody once. A global function without branches on what it compares: so the
 * verifier walks it once, and its turns not in all their orders. */
__noinline int dispatch_by_least(const struct service *service)
{
	__u32 number, members, first, at, best_at, before_at;
	struct place *place;
	__s64 best_load;
	__u64 best;

	if (!service)
		return NO_ID;
	number = service->number;
	members = service->members;
	place = bpf_map_lookup_elem(&turns, &number);
	if (!place || !members || service->rounds_count <= members)
		return NO_ID;
	first = service->rounds_count - members;
	best = next_turn(service, place, first);
	best_load = load_of(best);
	best_at = before_at = place->lightest;
	at = place->look;
	for (__u32 i = 0; i < LEAST_LOOKS && i < members; i++) {
		__u64 word, lighter;
		__s64 load;
		__u32 index;

		if (i == LEAST_LOOKS - 1 && members > LEAST_LOOKS)
			at = place->lightest;
		if (at >= members)
			at = 0;
		index = at++;
		word = round_word(service, first + index);
		load = load_of(word);
		lighter = all_ones_if_lighter(word, load, best, best_load);
		before_at ^= (before_at ^ best_at) & lighter;
		best_at ^= (best_at ^ index) & lighter;
		best ^= (best ^ word) & lighter;
		best_load ^= (best_load ^ load) & lighter;
	}
	place->look = at;
	place->lightest = before_at;
	return turn_id(best);
}
