/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* counters.h - what happened, per service and verdict, and per server; one copy per CPU. */
#pragma once

#include "wire/kernel.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"

struct traffic {
	__u64 packets, bytes; /* bytes of IP packets as they came in */
};

struct server_traffic {
	__u64 packets, bytes;
	__u64 connections; /* that this node dispatched */
	struct traffic fast; /* packets of lb/walk/fast_path.h, counted here alone: user space adds them to the above
				and to the service's FORWARDED_BY_COOKIE */
	__u64 closed; /* whose client's FIN or RST passed with a cookie; at once: those without one, whose end nobody
			 could recognise */
};

/* Index: service number * VERDICTS + verdict. Service 0 is whatever belongs to none. No packet has VERDICT_CONTINUE:
 * there user space keeps what servers that have left the service had counted as fast. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERVICE_NUMBERS *VERDICTS);
	__type(key, __u32);
	__type(value, struct traffic);
} verdict_counters SEC(".maps");

/* Packets whose TCP options were searched for the timestamp: none of Cheetah's fast patterns (table I) matched. Index:
 * service number. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERVICE_NUMBERS);
	__type(key, __u32);
	__type(value, __u64);
} timestamp_searches SEC(".maps");

/* Index: server.counter. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct server_traffic);
} server_counters SEC(".maps");

inline_always void count_verdict(__u32 service, enum verdict verdict, __u32 bytes)
{
	__u32 index = service * VERDICTS + verdict;
	struct traffic *traffic = bpf_map_lookup_elem(&verdict_counters, &index);

	if (traffic) {
		traffic->packets++;
		traffic->bytes += bytes;
	}
}

inline_always void count_timestamp_search(__u32 service)
{
	__u64 *searches = bpf_map_lookup_elem(&timestamp_searches, &service);

	if (searches)
		++*searches;
}

inline_always void count_fast(__u32 counter, __u32 bytes)
{
	struct server_traffic *traffic = bpf_map_lookup_elem(&server_counters, &counter);

	if (traffic) {
		traffic->fast.packets++;
		traffic->fast.bytes += bytes;
	}
}

inline_always void count_closed(__u32 counter)
{
	struct server_traffic *traffic = bpf_map_lookup_elem(&server_counters, &counter);

	if (traffic)
		traffic->closed++;
}

inline_always void count_server(__u32 counter, _Bool new_connection, _Bool followed, __u32 bytes)
{
	struct server_traffic *traffic = bpf_map_lookup_elem(&server_counters, &counter);

	if (traffic) {
		traffic->packets++;
		traffic->bytes += bytes;
		if (new_connection) {
			traffic->connections++;
			traffic->closed += !followed;
		}
	}
}
