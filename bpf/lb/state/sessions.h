/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* sessions.h - session tls: what a load balancer needs to answer SYNs by itself and to read ClientHellos, and where
 * connections that begin have gone. */
#pragma once

#include "wire/kernel.h"
#include "wire/siphash.h"
#include "lb/carrier/session_id.h"
#include "lb/state/service.h"

/* Of a service. Index: service->session. Immutable once a row names it. */
struct session_config {
	struct session_id_key ids[2]; /* by parity of the epoch */
	struct siphash_state syn_cookies;
	__u8 has_ids[2]; /* is there a key of that parity? */
	__u16 mss; /* that we tell clients: what fits the ways to all servers */
	__u8 scale; /* of windows, as all servers' agents have it */
	__u8 clients; /* of a session that reach its server, 0: all */
	__u8 pad[2];
};
_Static_assert(sizeof(struct session_config) == 168, "session_config");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by user space at load time */
	__type(key, __u32);
	__type(value, struct session_config);
} session_configs SEC(".maps");

/* Where a connection's hello went: it may come again, and so may what follows, until the client has heard of its
 * server. Lost, it goes by what it says, or its timestamp. */
struct session_begun {
	__u32 tag; /* of the flow's hash */
	__be32 sequence; /* of the hello's first byte: connections of the same ports before or after have others,
			    farther away than our window */
	__u16 id; /* NO_ID: there is none */
	__u16 at; /* when, in 2^26 ns */
	__u16 held; /* slot of its hold, and 1; 0: the hello came whole */
	__u16 generation; /* of the hold */
};
_Static_assert(sizeof(struct session_begun) == 16, "session_begun");

#define BEGUN_SETS 16384 /* a power of two */
#define BEGUN_WAYS 4 /* of a set, which is one line of the cache: an LRU map takes ten times as long once it is full */
#define BEGUN_SHIFT 26

struct session_begun_set {
	struct session_begun ways[BEGUN_WAYS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BEGUN_SETS);
	__type(key, __u32);
	__type(value, struct session_begun_set);
} sessions_begun SEC(".maps");

inline_always __u16 session_now(void)
{
	return bpf_ktime_get_coarse_ns() >> BEGUN_SHIFT;
}

/* By session_hash. 0: it is not known, or not any more. */
static __noinline struct session_begun *session_begun_find(__u64 hash)
{
	__u32 set = hash >> 32 & (BEGUN_SETS - 1), tag = hash;
	struct session_begun_set *s = bpf_map_lookup_elem(&sessions_begun, &set);

	if (!s)
		return 0;
	for (int i = 0; i < BEGUN_WAYS; i++)
		if (s->ways[i].tag == tag && s->ways[i].id != NO_ID)
			return &s->ways[i];
	return 0;
}

/* The same of one whose first byte has that sequence number: another one is of another connection. */
inline_always struct session_begun *session_begun_again(__u64 hash, __be32 sequence)
{
	struct session_begun *begun = session_begun_find(hash);

	return begun && begun->sequence == sequence ? begun : 0;
}

/* In the slot of an earlier one of the flow, or of the oldest. CPUs share a set without a lock: a race sends a packet
 * astray, which comes again. */
__noinline int session_begun_put(__u64 hash, const struct session_begun *begun)
{
	__u32 set = hash >> 32 & (BEGUN_SETS - 1), oldest = 0, slot = 0;
	struct session_begun_set *s = bpf_map_lookup_elem(&sessions_begun, &set);

	if (!s || !begun)
		return 0;
	for (__u32 i = 0; i < BEGUN_WAYS; i++) {
		__u32 age = s->ways[i].tag == (__u32)hash ? 1 << 17
			    : s->ways[i].id == NO_ID	  ? 1 << 16
							  : (__u16)(begun->at - s->ways[i].at);

		if (age >= oldest) {
			oldest = age;
			slot = i;
		}
	}
	slot &= BEGUN_WAYS - 1;
	*(volatile __u16 *)&s->ways[slot].id = NO_ID;
	s->ways[slot].tag = hash;
	s->ways[slot].sequence = begun->sequence;
	s->ways[slot].at = begun->at;
	s->ways[slot].held = begun->held;
	s->ways[slot].generation = begun->generation;
	*(volatile __u16 *)&s->ways[slot].id = begun->id;
	return 0;
}
