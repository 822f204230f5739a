/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* report.h - tells whoever traces what became of a packet. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/state/service.h"
#include "lb/state/session_outcomes.h"
#include "lb/state/trace.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"

static __noinline int report(const struct packet *p, const struct decision *d, __u32 service, enum verdict verdict)
{
	__u32 first = 0;
	struct session_shown *shown = bpf_map_lookup_elem(&session_shows, &first);
	struct traced_packet *traced = traced_now();
	struct session_shown session = {};
	struct trace_event *event;

	if (shown) {
		session = *shown;
		__builtin_memset(shown, 0, sizeof(*shown));
	}
	if (!traced || !p || !d)
		return 0;
	event = trace_reserve(p, service);
	if (!event)
		return 0;
	trace_fill(event, p, traced, verdict);
	event->service = service;
	event->server = d->server ? d->id : NO_ID;
	event->timestamp = d->carried.timestamp;
	event->echo = d->carried.echo;
	__builtin_memcpy(event->stops, d->stops, sizeof(event->stops));
	event->stops_count = d->stops_count;
	event->session = session;
	bpf_ringbuf_submit(event, 0);
	return 0;
}
