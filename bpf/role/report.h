/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* report.h - tells whoever traces what became of a packet. */
#pragma once

static __noinline int report(const struct packet *p, const struct decision *d, __u32 service, enum verdict verdict)
{
	struct trace_event event = {
		.time_ns = bpf_ktime_get_coarse_ns(),
		.source_port = p->source_port,
		.destination_port = p->destination_port,
		.service = service,
		.server = d->server ? d->id : NO_ID,
		.length = p->length,
		.timestamp = d->carried.timestamp,
		.echo = d->carried.echo,
		.verdict = verdict,
		.tcp_flags = p->tcp_flags,
		.protocol = p->protocol,
		.ipv6 = p->ipv6,
		.stops_count = d->stops_count,
	};
	__u32 first = 0;
	struct session_shown *shown = bpf_map_lookup_elem(&session_shows, &first);

	__builtin_memcpy(event.stops, d->stops, sizeof(event.stops));
	__builtin_memcpy(event.source, p->source, 16);
	__builtin_memcpy(event.destination, p->destination, 16);
	if (shown) {
		event.session = *shown;
		__builtin_memset(shown, 0, sizeof(*shown));
	}
	return trace(&event);
}
