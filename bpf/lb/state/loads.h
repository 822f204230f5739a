/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* loads.h - open connections as this node sees them, for the policies that choose by them. */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "lb/state/least_loaded.h"
#include "lb/state/rounds.h"
#include "lb/state/service.h"

/* SYNs sent less FINs and RSTs seen; user space corrects it. Index: server.counter. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __s32);
} server_loads SEC(".maps");

/* Open connections for the server's weight: what p2c and least keep low. */
inline_always __s64 cost_of(__u64 turn)
{
	__u32 counter = turn_counter(turn);
	const __s32 *load = bpf_map_lookup_elem(&server_loads, &counter);

	return load ? (__s64)*load * turn_price(turn) : 0;
}

/* +1 at a SYN, -1 at the client's FIN or RST. */
inline_always void load_learn(const struct service *service, __u32 id, const struct server *server, __s32 change)
{
	__u32 counter = server->counter;
	__s32 *load = bpf_map_lookup_elem(&server_loads, &counter);

	if (!load || (change < 0 && *load <= 0))
		return;
	if (service->dispatch == DISPATCH_LEAST)
		report_load(service, id, __sync_fetch_and_add(load, change) + change);
	else
		__sync_fetch_and_add(load, change);
}
