/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* loads.h - open connections as this node sees them, for the policies that choose by them. */
#pragma once

/* SYNs sent less FINs and RSTs seen; user space lets it decay. Index: server.counter. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __s32);
} server_loads SEC(".maps");

inline_always __s64 load_of(__u64 turn)
{
	__u32 counter = turn_counter(turn);
	const __s32 *load = bpf_map_lookup_elem(&server_loads, &counter);

	return load ? *load : 0;
}

/* Has one turn's server less load for its weight than the other's? All bits are set, or none: a mask needs no branch. */
inline_always __u64 all_ones_if_lighter(__u64 turn, __s64 load, __u64 other, __s64 other_load)
{
	__u64 mask = (load * turn_weight(other) - other_load * turn_weight(turn)) >> 63;

	asm volatile("" : "+r"(mask)); /* clang would make a branch of it */
	return mask;
}

/* +1 at a SYN, -1 at the client's FIN or RST. */
inline_always void load_learn(const struct server *server, __s32 change)
{
	__u32 counter = server->counter;
	__s32 *load = bpf_map_lookup_elem(&server_loads, &counter);

	if (load && (change > 0 || *load > 0))
		__sync_fetch_and_add(load, change);
}
