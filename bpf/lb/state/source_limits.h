/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* source_limits.h - source_limit: how many connections a source begins at a VIP of a service. A bucket of tokens is one
 * time: when what its source has begun will have been paid for (GCRA, ITU-T I.371). One whose time has come is as good
 * as none, so a source takes its place and nothing is lost. Where all of a set are owed, sources go uncounted: a flood
 * of many sources costs others nothing. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "wire/siphash.h"
#include "lb/state/service.h"

#define SOURCE_SETS 16384
#define SOURCE_WAYS 4
#define SOURCE_TIME ((1ULL << 48) - 1)
/* No bucket is owed longer: what seems to be is as old as the time needs to come round, years. */
#define SOURCE_OWED_MOST (1ULL << 33)

/* Low 48 bits: a time in 256 ns. Above it 16 bits of the source's hash. Fields of a service are of that unit. */
struct source_set {
	__u64 buckets[SOURCE_WAYS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SOURCE_SETS);
	__type(key, __u32);
	__type(value, struct source_set);
} source_limits SEC(".maps");

/* How long a bucket is owed from now on. 0: it is not. */
inline_always __u64 source_owed(__u64 bucket, __u64 now)
{
	__u64 owed = (bucket - now) & SOURCE_TIME;

	return owed > SOURCE_OWED_MOST ? 0 : owed;
}

/* Not inlined, nor called by source_begins: the state of the hash lies on the stack only as long as it is used. */
static __noinline __u64 source_hash(const struct packet *p, const struct service *service)
{
	__be32 source[4] = { p->source[0] };
	__u64 mask;

	if (p->ipv6) {
		mask = ~0ULL << (64 - (service->source_ipv6 & 63 ?: 64));
		source[0] &= bpf_htonl(mask >> 32);
		source[1] = p->source[1] & bpf_htonl(mask);
	} else {
		source[0] &= bpf_htonl(~0U << (32 - (service->source_ipv4 & 31 ?: 32)));
	}
	/* Services of a VIP may have one hash. */
	return flow_hash(&service->placement_hash, source, service->number, 0, p->ipv6);
}

/* May the source of that hash begin one connection more? It has then. A global function: it is verified once. Where
 * another CPU changes the same bucket at that moment, the connection is not counted. */
__noinline int source_begins(const struct service *service, __u64 hash)
{
	__u64 now, owed = 0, bucket = 0, *at = 0;
	__u32 index = hash >> 50, way;
	struct source_set *set;

	set = bpf_map_lookup_elem(&source_limits, &index);
	if (!service || !set)
		return 1;
	now = bpf_ktime_get_ns() >> 8 & SOURCE_TIME;
#pragma clang loop unroll(disable)
	for (way = 0; way < SOURCE_WAYS; way++) {
		__u64 word = *(volatile __u64 *)&set->buckets[way];
		_Bool is_its = (__u16)hash == word >> 48;

		if (!source_owed(word, now) ? at != 0 : !is_its)
			continue;
		at = &set->buckets[way];
		bucket = word;
		owed = source_owed(word, now);
		if (owed)
			break;
	}
	if (!at)
		return 1;
	if (owed > service->source_depth)
		return 0;
	now = (now + owed + service->source_step) & SOURCE_TIME;
	__sync_val_compare_and_swap(at, bucket, now | hash << 48);
	return 1;
}

inline_always _Bool is_over_source_limit(const struct packet *p, const struct service *service)
{
	return service->source_step && !source_begins(service, source_hash(p, service));
}
