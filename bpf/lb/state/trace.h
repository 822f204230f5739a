/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* trace.h - why did this packet go there: one event per matching packet, off unless somebody looks. */
#pragma once

#include "wire/kernel.h"
#include "wire/gue.h"
#include "wire/parse.h"

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

#define TRACE_HEAD 192 /* Ethernet, a tunnel over IPv6 with two stops, IPv6 and TCP with all its options */

/* The packet of now, as the device gave it. report.h takes it. */
struct traced_packet {
	__u32 interface;
	__u32 stands_for; /* packets: one of so many is traced; 0: this one is not */
	__u32 length; /* of the frame */
	__u32 copied; /* that many bytes */
	__u8 head[TRACE_HEAD];
};

struct trace_event {
	__u64 time_ns; /* CLOCK_MONOTONIC */
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
	struct traced_packet frame;
};
_Static_assert(sizeof(struct trace_event) == 296, "trace_event");

/* Zero fields match anything; budget is what may still be reported, filled up by user space. */
struct trace_filter {
	__s32 budget;
	__u32 service;
	__be32 client[4];
	__be16 client_port;
	__u16 pad;
	__u32 one_of; /* of so many packets one is traced, by chance; 0: all are */
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

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct traced_packet);
} traced_packets SEC(".maps");

/* The switch, apart from the filter so that packets touch one word when it is off. */
volatile __u32 trace_enabled;

/* A packet comes, and is not changed yet. 0: it is not traced. */
static __noinline int trace_begin(struct xdp_md *ctx)
{
	__u32 first = 0, last;
	struct trace_filter *filter = bpf_map_lookup_elem(&trace_filters, &first);
	struct traced_packet *traced = bpf_map_lookup_elem(&traced_packets, &first);

	if (!filter || !traced)
		return 0;
	traced->stands_for = 0;
	if (filter->one_of && (__u64)bpf_get_prandom_u32() * filter->one_of >> 32)
		return 0;
	traced->interface = ctx->ingress_ifindex;
	traced->length = bpf_xdp_get_buff_len(ctx);
	last = (traced->length > TRACE_HEAD ? TRACE_HEAD : traced->length) - 1;
	asm volatile("" : "+r"(last));
	if (last >= TRACE_HEAD || bpf_xdp_load_bytes(ctx, 0, traced->head, last + 1))
		return 0;
	traced->copied = last + 1;
	traced->stands_for = filter->one_of ? filter->one_of : 1;
	return 1;
}

inline_always struct traced_packet *traced_now(void)
{
	__u32 first = 0;
	struct traced_packet *traced = bpf_map_lookup_elem(&traced_packets, &first);

	return traced && traced->stands_for ? traced : 0;
}

inline_always _Bool is_traced(void)
{
	return trace_enabled && traced_now();
}

/* Room for the event of a packet, if it is one that is looked for. */
inline_always struct trace_event *trace_reserve(const struct packet *p, __u32 service)
{
	struct trace_event *event = 0;
	struct trace_filter *filter;
	__u32 first = 0;

	filter = bpf_map_lookup_elem(&trace_filters, &first);
	if (!filter)
		return 0;
	if (filter->service && filter->service != service)
		return 0;
	if (filter->client_port && filter->client_port != p->source_port)
		return 0;
	if ((filter->client[0] | filter->client[1] | filter->client[2] | filter->client[3]) &&
	    (filter->client[0] != p->source[0] || filter->client[1] != p->source[1] ||
	     filter->client[2] != p->source[2] || filter->client[3] != p->source[3]))
		return 0;
	if (__sync_fetch_and_add(&filter->budget, -1) > 0)
		event = bpf_ringbuf_reserve(&trace_events, sizeof(*event), 0);
	if (!event)
		__sync_fetch_and_add(&filter->suppressed, 1);
	return event;
}

/* What an event has of every packet, decided or not. The event says the last of this one. */
inline_always void trace_fill(struct trace_event *event, const struct packet *p, struct traced_packet *traced,
			      __u8 verdict)
{
	__builtin_memset(event, 0, sizeof(*event));
	event->time_ns = bpf_ktime_get_ns();
	__builtin_memcpy(event->source, p->source, 16);
	__builtin_memcpy(event->destination, p->destination, 16);
	event->source_port = p->source_port;
	event->destination_port = p->destination_port;
	event->length = p->length;
	event->verdict = verdict;
	event->tcp_flags = p->tcp_flags;
	event->protocol = p->protocol;
	event->ipv6 = p->ipv6;
	event->frame = *traced;
	traced->stands_for = 0;
}
