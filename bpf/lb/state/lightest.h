/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* lightest.h - of each group of a service's servers the one with the lowest cost known, for dispatch least. */
#pragma once

#include "wire/kernel.h"
#include "lb/state/rounds.h"
#include "lb/state/service.h"

#define LOAD_GROUPS 16

/* Whoever changes a load tells it. A server stays the lightest until another of its group tells less: one whose connection ends, or whose turn it
 * is. So of a group of one the cost is exact. CPUs that tell at once may leave a cost that is off by one until the next of them. */
struct lightest {
	__s64 ranks[LOAD_GROUPS]; /* cost << 16 | id; of an empty group above all costs */
};
_Static_assert(sizeof(struct lightest) == 128, "lightest");

/* Index: service.row. A new row has its own, so that none is named who may not get connections any more. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * SERVICE_NUMBERS);
	__type(key, __u32);
	__type(value, struct lightest);
} lightest SEC(".maps");

inline_always struct lightest *lightest_of(const struct service *service)
{
	__u32 row = service->row;

	return bpf_map_lookup_elem(&lightest, &row);
}

inline_always void tell_lightest(struct lightest *all, __u64 turn, __s64 cost)
{
	volatile __s64 *at = &all->ranks[turn_group(turn)];
	__s64 rank = cost << 16 | turn_id(turn), known = *at;

	if (rank < known || turn_id(known) == turn_id(turn))
		*at = rank;
}

/* Of a server that may not get new connections there is no turn. */
inline_always void tell_load(const struct service *service, __u32 id, __s32 load)
{
	struct lightest *all = lightest_of(service);
	__u64 turn;

	if (!all || id >= service->id_turns)
		return;
	turn = round_word(service, service->rounds_count - service->id_turns + id);
	if (turn)
		tell_lightest(all, turn, (__s64)load * turn_price(turn));
}
