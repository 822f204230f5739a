/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* loads.h - the servers' loads, which p2c and least compare: open connections as this node counts them, or loads that
 * were reported (Cheetah IV-B). */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "lb/state/least_loaded.h"
#include "lb/state/rounds.h"
#include "lb/state/service.h"

/* What a new connection adds to a reported load. User space writes loads in this unit at each report. */
#define CONNECTION_LOAD 256

/* SYNs sent less FINs and RSTs seen; user space corrects it. Or the load reported last, and CONNECTION_LOAD for each
 * SYN since: the server with the lowest report does not get every connection until the next one. Index: server.counter.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __s32);
} server_loads SEC(".maps");

/* Load for the server's weight: what p2c and least keep low. */
inline_always __s64 cost_of(__u64 turn)
{
	__u32 counter = turn_counter(turn);
	const __s32 *load = bpf_map_lookup_elem(&server_loads, &counter);

	return load ? (__s64)*load * turn_price(turn) : 0;
}

inline_always void load_add(const struct service *service, __u32 id, const struct server *server, __s32 change)
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

inline_always _Bool compares_loads(const struct service *service)
{
	return service->dispatch == DISPATCH_P2C || service->dispatch == DISPATCH_LEAST;
}

/* At a SYN. */
inline_always void load_begin(const struct service *service, __u32 id, const struct server *server)
{
	if (compares_loads(service))
		load_add(service, id, server, service->flags & SERVICE_REPORTED_LOADS ? CONNECTION_LOAD : 1);
}

/* At the client's FIN or RST. Ends do not lower a reported load: what the connection has cost is in the next report. */
inline_always void load_end(const struct service *service, __u32 id, const struct server *server)
{
	if (compares_loads(service) && !(service->flags & SERVICE_REPORTED_LOADS))
		load_add(service, id, server, -1);
}
