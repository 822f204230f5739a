/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* trace.h - why did this packet go there: one event per matching packet, off unless somebody looks. */
#pragma once

/* session tls: what a hello names. */
struct session_shown {
	__u8 is; /* there was a hello */
	__u8 outcome; /* enum session_outcome */
	__u8 source; /* enum hello_source: of the name */
	__u8 pad;
	__u8 name[4]; /* its first bytes: of the nonce, which alone lead nowhere */
	__u16 id; /* that it opens to */
	__u16 pad2;
};

struct trace_event {
	__u64 time_ns;
	__be32 source[4], destination[4];
	__be16 source_port, destination_port;
	__u32 service; /* number */
	__u16 server; /* id, 0: none */
	__u16 length;
	__u32 timestamp, echo; /* TSval and TSecr, host order */
	__u8 verdict, tcp_flags, protocol, ipv6;
	__u16 stops[STOPS_MAX]; /* ids: who is asked further */
	__u8 stops_count, pad;
	struct session_shown session;
	__u32 pad32;
};
_Static_assert(sizeof(struct trace_event) == 96, "trace_event");

/* Zero fields match anything; budget is what may still be reported, filled up by user space. */
struct trace_filter {
	__s32 budget;
	__u32 service;
	__be32 client[4];
	__be16 client_port;
	__u16 pad;
	__u32 suppressed; /* events that found no budget or no room */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct trace_filter);
} trace_filters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144);
} trace_events SEC(".maps");

/* The switch, apart from the filter so that packets touch one word when it is off. */
volatile __u32 trace_enabled;

static __noinline int trace(const struct trace_event *event)
{
	struct trace_filter *filter;
	__u32 zero = 0;

	filter = bpf_map_lookup_elem(&trace_filters, &zero);
	if (!filter || !event)
		return 0;
	if (filter->service && filter->service != event->service)
		return 0;
	if (filter->client_port && filter->client_port != event->source_port)
		return 0;
	if ((filter->client[0] | filter->client[1] | filter->client[2] | filter->client[3]) &&
	    (filter->client[0] != event->source[0] || filter->client[1] != event->source[1] ||
	     filter->client[2] != event->source[2] || filter->client[3] != event->source[3]))
		return 0;
	if (__sync_fetch_and_add(&filter->budget, -1) <= 0 ||
	    bpf_ringbuf_output(&trace_events, (void *)event, sizeof(*event), 0))
		__sync_fetch_and_add(&filter->suppressed, 1);
	return 0;
}
