/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* turns.h - rr and wrr: the next id of a sequence that user space wrote (weights are repetitions, well spread). */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4097);
	__type(key, __u32);
	__type(value, __u32);
} turns SEC(".maps");

inline_always __u16 round_entry(const struct service *service, __u32 index)
{
	const __u16 *id;

	index += service->rounds_base;
	id = bpf_map_lookup_elem(&rounds, &index);
	return id ? *id : NO_ID;
}

/* Each CPU of each node begins at a place of its own: together they would all start with the same server. */
inline_always __u16 dispatch_by_turns(const struct service *service)
{
	__u32 number = service->number;
	__u32 *turn = bpf_map_lookup_elem(&turns, &number);

	if (!turn || !service->rounds_count)
		return NO_ID;
	if (!*turn)
		*turn = bpf_get_prandom_u32();
	return round_entry(service, (*turn)++ % service->rounds_count);
}
