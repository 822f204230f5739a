/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* session.h - the ladder's rung of services with session tls: the result of lb/walk/session.h for the packet. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/state/holds.h"
#include "lb/state/service.h"
#include "lb/state/sessions.h"
#include "lb/state/source_limits.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"
#include "lb/ladder/placed.h"

struct session_found {
	__u16 id;
	__u8 verdict;
	_Bool detour; /* behind what was released */
	__u16 generation, pad;
	__u32 held; /* the packet goes by tc, and this is its slot and 1; 0: it does not */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct session_found);
} session_result SEC(".maps");

/* Id NO_ID: by placement. Held: the packet goes by tc, in place of what is held, or behind what was (detour). */
inline_always enum verdict session_found_held(__u16 id, enum verdict verdict, __u32 held, __u16 generation,
					      _Bool detour)
{
	__u32 first = 0;
	struct session_found *result = bpf_map_lookup_elem(&session_result, &first);

	if (!result)
		return DROPPED_NO_SERVER;
	result->id = id;
	result->verdict = verdict;
	result->held = held;
	result->generation = generation;
	result->detour = detour;
	return VERDICT_CONTINUE;
}

inline_always enum verdict session_found(__u16 id, enum verdict verdict)
{
	return session_found_held(id, verdict, 0, 0, 0);
}

/* To where the hello went. */
inline_always enum verdict session_again(const struct session_begun *begun)
{
	_Bool detour = begun->held && (__u16)(session_now() - begun->at) < HOLD_DETOUR_TIME;

	return session_found_held(begun->id, FORWARDED_STARTING, detour ? begun->held : 0, begun->generation, detour);
}

#define REPEATS_FREE 8 /* more than a client sends its first segment again (RFC 6298), and a network twice */

/* The first segment of a connection that has begun: does it come again as a client sends it again, or as a source does
 * that wants another connection for it? While it may take the detour behind what was held, the counter is that. */
inline_always _Bool repeats_freely(struct session_begun *before)
{
	if (before->held) {
		if ((__u16)(session_now() - before->at) < HOLD_DETOUR_TIME)
			return 1;
		before->held = before->generation = 0;
	}
	if (before->generation >= REPEATS_FREE)
		return 0;
	before->generation++;
	return 1;
}

/* The first segment of a connection has come. Is it one too many of its source? again: it has come before, then; 0: it
 * has not. */
inline_always _Bool is_over_session_limit(const struct packet *p, const struct service *service,
					  struct session_begun *again)
{
	return service->source_step && !(again && repeats_freely(again)) && is_over_source_limit(p, service);
}

/* VERDICT_CONTINUE: lb_session decides. A global function: see steer_slow. */
__noinline int steer_by_session(const struct packet *p, const struct service *service, struct decision *decided)
{
	__u32 first = 0;
	struct session_found *result = bpf_map_lookup_elem(&session_result, &first);
	enum verdict verdict;

	if (!p || !service || !decided)
		return DROPPED_MALFORMED;
	if (!decided->owner_known || !result)
		return VERDICT_CONTINUE;
	verdict = result->verdict;
	result->verdict = VERDICT_CONTINUE; /* it is of this packet alone */
	decided->id = result->id;
	if (result->id == NO_ID) {
		struct decision d = { .service = service };

		steer_by_placement(p, &d);
		if (!d.server)
			return DROPPED_NO_SERVER;
		decided->id = d.id;
		__builtin_memcpy(decided->stops, d.stops, sizeof(d.stops));
		decided->stops_count = d.stops_count;
		decided->next = d.next;
	}
	return verdict;
}
