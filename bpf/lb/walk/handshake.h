/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* handshake.h - session tls, syn_proxy: this node answers SYNs, and remembers nothing (Yuz IV-B). */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "wire/siphash.h"
#include "wire/syn_cookie.h"
#include "wire/timestamp.h"
#include "lb/packet/client_hello.h"
#include "lb/carrier/syn.h"
#include "lb/state/node.h"
#include "lb/state/service.h"
#include "lb/state/sessions.h"
#include "lb/state/verdict.h"
#include "lb/send/answer.h"
#include "lb/send/syn_ack.h"

/* What lies beside a SYN or a hello, off the stack. */
struct session_work {
	struct packet packet;
	struct connection_key key;
	struct syn_ack answer;
	__u64 hash; /* session_hash, by the key that the echo names */
	__u32 echo, timestamp; /* what it echoes; 0: nothing. Its own */
	__u32 frame; /* bytes */
	__u32 payload; /* bytes */
	__be32 sequence, acknowledged;
	__be32 base; /* sequence number of the hello's first byte */
	__u16 window; /* in the SYN-ACK */
	__sum16 checksum; /* of TCP */
	__u8 timestamp_at; /* offset of TSval in the TCP header */
	_Bool begins; /* the segment is the first with data */
	__u8 outcome; /* enum hello_outcome */
	__u16 fallback; /* id of the server that gets it if it names none */
	__u16 generation; /* of held */
	__u32 held; /* slot of its held hello and 1; 0: none */
	struct hello hello;
	struct option_bytes options;
	struct syn_options syn;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct session_work);
} session_works SEC(".maps");

inline_always struct syn_cookie_flow syn_cookie_flow(const struct packet *p, __be32 sequence, __be32 timestamp)
{
	struct syn_cookie_flow f = { .client_port = p->source_port,
				     .service_port = p->destination_port,
				     .sequence = sequence,
				     .timestamp = timestamp,
				     .ipv6 = p->ipv6 };

	__builtin_memcpy(f.client, p->source, 16);
	return f;
}

inline_always __u64 session_hash(const struct packet *p, const struct service *service, __u8 parity)
{
	return flow_hash(&service->cookie_hash[parity & 1], p->source, p->source_port, p->destination_port, p->ipv6);
}

/* The answer to a SYN says what it has told, and that `fallback` gets the connection if its ClientHello names no
 * server. */
inline_always void syn_answer(struct syn_ack *a, const struct packet *p, const struct service *service,
			      const struct session_config *config, const struct syn_options *syn, __be32 sequence,
			      __u16 fallback)
{
	_Bool ecn = (p->tcp_flags & 0xc0) == 0xc0; /* RFC 3168 6.1.1 */
	struct syn_cookie_flow f;
	__u32 timestamp = 0, low;

	if (syn->timestamps)
		timestamp = syn_cookie_timestamp(fallback, session_hash(p, service, service->epoch_parity),
						 service->epoch_parity, service->cookie_bits);
	f = syn_cookie_flow(p, sequence, bpf_htonl(timestamp));
	low = syn_cookie_low(syn->mss, syn->scale, syn->sack, ecn, syn_cookie_period());
	a->acknowledged = bpf_htonl(bpf_ntohl(sequence) + 1);
	a->flags = TCP_FLAG_SYN_BIT | TCP_FLAG_ACK_BIT | (ecn ? TCP_FLAG_ECE_BIT : 0);
	a->window = SYN_ACK_WINDOW;
	a->sequence = bpf_htonl(syn_cookie_make(&config->syn_cookies, &f, low));
	a->words = syn_ack_options(syn, config->mss, config->scale, bpf_htonl(timestamp), a->options);
}

/* A SYN. */
__noinline int session_answer(struct xdp_md *ctx, struct session_work *w, const struct service *service,
			      const struct session_config *config)
{
	void *data, *end;
	struct tcphdr *tcp;
	__u32 last;

	if (!w || !service || !config)
		return DROPPED_MALFORMED;
	if (!answer_possible(&w->packet))
		return DROPPED_IMPOSSIBLE_SOURCE;
	last = w->packet.header - TCP_HEADER_MIN - 1;
	asm volatile("" : "+r"(last));
	if (last < TCP_OPTIONS_MAX && bpf_xdp_load_bytes(ctx, w->packet.l4 + TCP_HEADER_MIN, &w->options, last + 1))
		return DROPPED_MALFORMED;
	syn_read(&w->options, w->packet.header - TCP_HEADER_MIN, &w->syn);
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	tcp = packet_at(data, w->packet.l4);
	if ((void *)(tcp + 1) > end)
		return DROPPED_MALFORMED;
	syn_answer(&w->answer, &w->packet, service, config, &w->syn, tcp->seq, w->fallback);
	return answer_segment(ctx, &w->packet, &w->answer);
}
