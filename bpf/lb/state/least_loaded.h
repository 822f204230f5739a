/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* least_loaded.h - the server with the lowest known cost of each group of a service, for dispatch least. */
#pragma once

#include "wire/kernel.h"
#include "lb/state/rounds.h"
#include "lb/state/service.h"

#define LOAD_GROUPS 16

/* Each change of a load is reported here. A server stays the least loaded until another of its group reports less: one
 * whose connection ends, or whose turn it is. So the cost of a group of one is exact. CPUs that report at once may
 * leave a cost off by one until the next report. */
struct least_loaded {
	__s64 ranks[LOAD_GROUPS]; /* cost << 16 | id; of an empty group above all costs */
};
_Static_assert(sizeof(struct least_loaded) == 128, "least_loaded");

/* Index: service.row. A new row has its own, so that it names no server that may not get connections any more. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * SERVICE_NUMBERS);
	__type(key, __u32);
	__type(value, struct least_loaded);
} least_loaded SEC(".maps");

inline_always struct least_loaded *least_loaded_of(const struct service *service)
{
	__u32 row = service->row;

	return bpf_map_lookup_elem(&least_loaded, &row);
}

inline_always void least_loaded_update(struct least_loaded *all, __u64 turn, __s64 cost)
{
	volatile __s64 *at = &all->ranks[turn_group(turn)];
	__s64 rank = cost << 16 | turn_id(turn), known = *at;

	if (rank < known || turn_id(known) == turn_id(turn))
		*at = rank;
}

/* A server that may not get new connections has no turn. */
inline_always void report_load(const struct service *service, __u32 id, __s32 load)
{
	struct least_loaded *all = least_loaded_of(service);
	__u64 turn;

	if (!all || id >= service->id_turns)
		return;
	turn = round_word(service, service->rounds_count - service->id_turns + id);
	if (turn)
		least_loaded_update(all, turn, (__s64)load * turn_price(turn));
}
