/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* session_outcomes.h - session tls: outcomes of ClientHellos, counted per service and CPU, and reported to traces. */
#pragma once

#include "wire/kernel.h"
#include "lb/packet/client_hello.h"
#include "lb/state/service.h"
#include "lb/state/trace.h"

/* The first ones are what hello_read finds. User space reads the names from BTF. */
enum session_outcome {
	SESSION_NOT_TLS = HELLO_NOT_TLS,
	SESSION_INCOMPLETE = HELLO_MORE, /* the rest has not come, or what came could not be held */
	SESSION_MALFORMED = HELLO_MALFORMED,
	SESSION_NONE = HELLO_COMPLETE, /* it resumes none, or shows a session id that is not ours: TLS 1.3 clients send
					  random ones */
	SESSION_RESUMED, /* it goes to the server of the session */
	SESSION_UNKNOWN, /* a ticket, or an identity, that no server of the service has issued, or by a key that is gone
			  */
	SESSION_UNAVAILABLE, /* the server of the session is not healthy, or not there any more */
	SESSION_LIMITED, /* too many clients show it */
	SESSION_UNTIMED, /* the client has no timestamps, and so no sessions */

	SESSION_OUTCOMES,
};

/* Index: service number * SESSION_OUTCOMES + outcome. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERVICE_NUMBERS *SESSION_OUTCOMES);
	__type(key, __u32);
	__type(value, __u64);
} session_outcomes SEC(".maps");

inline_always void count_session(__u32 service, enum session_outcome outcome)
{
	__u32 index = service * SESSION_OUTCOMES + outcome;
	__u64 *hellos = bpf_map_lookup_elem(&session_outcomes, &index);

	if (hellos)
		++*hellos;
}

/* What the packet of now has shown: report.h takes it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct session_shown);
} session_shows SEC(".maps");

inline_always void session_show(const struct hello *h, __u16 id, enum session_outcome outcome)
{
	__u32 first = 0;
	struct session_shown *shown = bpf_map_lookup_elem(&session_shows, &first);

	if (!shown)
		return;
	shown->is = 1;
	shown->outcome = outcome;
	shown->source = outcome > SESSION_NONE && outcome != SESSION_UNTIMED ? h->source : HELLO_NO_SESSION;
	shown->id = id;
	__builtin_memcpy(shown->name, h->name, sizeof(shown->name));
}
