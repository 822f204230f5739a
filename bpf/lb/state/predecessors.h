/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* predecessors.h - who had the VIP of a service before, and when connections were last seen that go on to predecessors,
 * so that somebody knows when there are none. Flows whose hashes agree share a place: the count is a little too small
 * where there are many, and of several services one may take another's place until its next packet. */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "lb/state/service.h"

#define SEEN_FLOWS 65536

/* By hash of the flow: number of the service, and above it when, in seconds of the monotonic clock. 0: nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SEEN_FLOWS);
	__type(key, __u32);
	__type(value, __u64);
} predecessor_flows SEC(".maps");

inline_always const struct server *predecessor_by_id(const struct service *service, __u32 id)
{
	__u32 which = id - PREDECESSOR_ID, index = service->predecessors_base + which;
	const __u32 *row;

	if (which >= service->predecessors)
		return 0;
	row = bpf_map_lookup_elem(&server_rows, &index);
	return row && *row ? bpf_map_lookup_elem(&servers, row) : 0;
}

/* A server, or a predecessor. */
inline_always const struct server *target_by_id(const struct service *service, __u32 id)
{
	return id < PREDECESSOR_ID ? server_by_id(service, id) : predecessor_by_id(service, id);
}

inline_always void predecessor_seen(__u32 service, __u64 hash)
{
	__u32 index = hash * 0x9e3779b97f4a7c15ULL >> 48;
	__u64 *flow = bpf_map_lookup_elem(&predecessor_flows, &index);

	if (flow)
		*flow = bpf_ktime_get_coarse_ns() / 1000000000 << 32 | service;
}
