/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* least.h - fewest open connections for its weight; of equals, whose turn it is.
 *
 * Exact among up to LEAST_LOOKS servers. Among more it looks at the next few of a rotation and once more at the one that it chose the
 * last time: load balancing with memory (Mitzenmacher, Prabhakar, Shah, FOCS 2002). So its cost has a bound.
 */
#pragma once

#define LEAST_LOOKS 16
#define LEAST_LAST 31 /* stands for the one chosen last time */

/* Cost first, then the order of the looks: of equals the earlier one is lower. */
inline_always __s64 least_rank(__u64 turn, __u32 look)
{
	return cost_of(turn) << 5 | look;
}

/* Without a branch, of which the verifier would have to follow both ways, look for look. */
inline_always __s64 lower_rank(__s64 a, __s64 b)
{
	__s64 mask = (b - a) >> 63;

	asm volatile("" : "+r"(mask)); /* clang would make a branch of it */
	return a + ((b - a) & mask);
}

inline_always __u32 least_looks(__u32 members)
{
	return members <= LEAST_LOOKS ? members : LEAST_LOOKS - 1;
}

/* Where the looks begin. */
inline_always __u32 least_begin(const struct place *place, __u32 members)
{
	return place->look < members ? place->look : 0;
}

/* rounds: turns by weight; then a ring, everybody once and the first of them once more, so that looks in a row never wrap around. Returns an id
 * and, above it, 1 + its place in the ring; or 0: it was its turn. */
__noinline int dispatch_by_least(const struct service *service)
{
	__u32 members, looks, ring, at, chosen;
	struct place *place;
	__s64 best;
	__u64 turn;

	if (!service)
		return NO_ID;
	members = service->members;
	looks = least_looks(members);
	ring = service->rounds_count - (members + looks - 1);
	place = place_in_turns(service);
	if (!place || !members || !ring)
		return NO_ID;
	turn = next_turn(service, place, ring);
	at = least_begin(place, members);
	best = least_rank(turn, 0);
	for (__u32 look = 1; look <= LEAST_LOOKS && look <= looks; look++)
		best = lower_rank(best, least_rank(round_word(service, ring + at + look - 1), look));
	if (members > LEAST_LOOKS && place->last < members)
		best = lower_rank(best, least_rank(round_word(service, ring + place->last), LEAST_LAST));
	chosen = best & 31;
	if (!chosen)
		return turn_id(turn);
	if (chosen == LEAST_LAST)
		chosen = place->last;
	else if ((chosen += at - 1) >= members)
		chosen -= members;
	return turn_id(round_word(service, ring + chosen)) | (chosen + 1) << 16;
}

/* Takes the turn. chosen: as dispatch_by_least said. */
inline_always void least_commit(const struct service *service, struct place *place, __u32 chosen)
{
	__u32 members = service->members, at = least_begin(place, members) + (members > LEAST_LOOKS ? least_looks(members) : 1);

	place->turn++;
	place->look = at < members ? at : at - members;
	if (chosen)
		place->last = chosen - 1;
}
