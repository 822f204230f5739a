/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* session.h - Yuz III, IV: connections of services with session tls begin at this node. It answers their SYNs and
 * remembers nothing, reads the ClientHello, and tells lb_slow_peer which server the packet goes to: that of the
 * session, or the policy's. From then on the connection goes by its cookie as any other. With syn_proxy it answers SYNs
 * as well, and reads no ClientHello: proxied.h. */
#pragma once

#include "wire/kernel.h"
#include "wire/cookie.h"
#include "wire/parse.h"
#include "wire/syn_cookie.h"
#include "lb/packet/client_hello.h"
#include "lb/state/counters.h"
#include "lb/state/holds.h"
#include "lb/state/loads.h"
#include "lb/state/node.h"
#include "lb/state/service.h"
#include "lb/state/session_outcomes.h"
#include "lb/state/sessions.h"
#include "lb/state/trace.h"
#include "lb/state/verdict.h"
#include "lb/affinity/closing.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/session.h"
#include "lb/ladder/slow.h"
#include "lb/ladder/replicas.h"
#include "lb/ladder/session.h"
#include "lb/send/syn_ack.h"
#include "lb/walk/ask.h"
#include "lb/walk/handshake.h"
#include "lb/walk/hold.h"
#include "lb/walk/proxied.h"
#include "lb/walk/report.h"

/* Reads what there is of a hello behind the header. Returns an enum hello_outcome. */
inline_always int session_read(struct xdp_md *ctx, struct session_work *w, __u32 payload)
{
	__u32 last = (payload > HELLO_MOST ? HELLO_MOST : payload) - 1;

	w->hello.cut = payload > HELLO_MOST;
	asm volatile("" : "+r"(last));
	if (last >= HELLO_MOST || bpf_xdp_load_bytes(ctx, w->packet.l4 + w->packet.header, w->hello.bytes, last + 1))
		return HELLO_MALFORMED;
	w->hello.length = last + 1;
	return hello_read(&w->hello);
}

/* A packet with data, or the client's end, of a connection whose hello has not been seen whole: it names the server, or
 * w->fallback gets it. A global function: it is verified once, and has a stack of its own. */
__noinline int session_hello(struct xdp_md *ctx, struct session_work *w, const struct service *service,
			     const struct session_config *config)
{
	struct session_begun *again;
	struct session_begun begun = {};
	enum verdict verdict;
	const struct server *server;
	__u16 id;

	if (!w || !service || !config)
		return DROPPED_MALFORMED;
	w->held = 0;
	w->base = w->sequence;
	w->outcome = HELLO_MORE;
	if (w->begins) {
		again = session_begun_again(w->hash, w->base);
		if (is_over_session_limit(&w->packet, service, again))
			return DROPPED_SOURCE_LIMIT;
		if (again)
			return session_again(again);
		w->outcome = w->echo ? session_read(ctx, w, w->payload)
				     : HELLO_NOT_TLS; /* without timestamps only placement finds the connection again */
	}
	if (w->outcome == HELLO_MORE ? w->echo : hold_waits(w->hash)) {
		verdict = session_hold(ctx, w, service);
		if (verdict != VERDICT_CONTINUE)
			return verdict;
		if (!w->begins && !w->held)
			return session_found(w->fallback, FORWARDED_STARTING);
	}
	id = session_server(service, config, &w->packet, &w->hello, w->echo ? w->outcome : SESSION_UNTIMED);
	verdict = FORWARDED_BY_SESSION;
	if (id == NO_ID) {
		verdict = FORWARDED_NEW;
		id = w->fallback;
	}
	server = server_by_id(service, id);
	if (!server)
		return DROPPED_NO_SERVER;
	begun.sequence = w->base;
	begun.id = id;
	begun.held = w->held;
	begun.generation = w->held ? w->generation : 0;
	begun.at = session_now();
	session_begun_put(w->hash, &begun);
	load_begin(service, id, server);
	return session_found_held(id, verdict, w->held, w->generation, 0);
}

/* No verdict: session_hello goes on. */
#define BEGINS_BY_HELLO (-1)

/* Any packet but a SYN of a connection that has not heard of its server. */
__noinline int session_begin(struct xdp_md *ctx, struct session_work *w, const struct service *service,
			     const struct session_config *config)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct session_begun *begun;
	struct syn_cookie_flow f;
	struct tcphdr *tcp;
	__u16 fallback = NO_ID;
	__be32 sequence;
	__u8 parity;
	__u32 echo;

	if (!w || !service || !config)
		return DROPPED_MALFORMED;
	tcp = packet_at(data, w->packet.l4);
	if ((void *)(tcp + 1) > end)
		return DROPPED_MALFORMED;
	echo = w->echo;
	parity = echo ? cookie_epoch_parity(echo, service->cookie_bits) : service->epoch_parity;
	w->hash = session_hash(&w->packet, service, parity);
	if (echo) {
		if (!service->id_mask[parity & 1] || cookie_plain(echo, w->hash, service->cookie_bits))
			return session_found(NO_ID, FORWARDED_BAD_COOKIE);
		fallback = syn_cookie_fallback(echo, w->hash, service->cookie_bits);
	}
	if (!server_by_id(service, fallback)) /* gone since, or never known */
		fallback = propose_server(&w->packet, service, 0);
	sequence = tcp->seq;
	f = syn_cookie_flow(&w->packet, bpf_htonl(bpf_ntohl(sequence) - 1), bpf_htonl(echo));
	w->payload = w->packet.length - (w->packet.l4 - w->packet.l3) - w->packet.header;
	w->sequence = sequence;
	w->acknowledged = tcp->ack_seq;
	w->checksum = tcp->check;
	w->window = ((bpf_ntohl(tcp->ack_seq) - 1) & SYN_COOKIE_SCALE) == SYN_COOKIE_SCALE
			    ? SYN_ACK_WINDOW
			    : SYN_ACK_WINDOW >> (config->scale & 15);
	w->fallback = fallback;
	w->begins = 1;
	if (w->packet.tcp_flags & TCP_FLAG_ACK_BIT &&
	    syn_cookie_is_good(&config->syn_cookies, &f, bpf_ntohl(tcp->ack_seq) - 1)) {
		if (!(service->flags & SERVICE_SESSION))
			return proxied_begins(w, service);
		if (w->payload && w->payload <= 65535)
			return BEGINS_BY_HELLO;
		if (!(w->packet.tcp_flags & TCP_FLAG_FIN_BIT))
			return DROPPED_HANDSHAKE;
	}
	if (!echo)
		return session_found(NO_ID, FORWARDED_NO_TIMESTAMP);
	begun = session_begun_find(w->hash);
	if (begun && bpf_ntohl(sequence) - bpf_ntohl(begun->sequence) <= SYN_ACK_WINDOW &&
	    server_by_id(service, begun->id))
		return session_again(begun);
	if (service->flags & SERVICE_SESSION && (w->payload || w->packet.tcp_flags & TCP_FLAG_FIN_BIT) &&
	    !(w->packet.tcp_flags & TCP_FLAG_RST_BIT)) {
		w->begins = 0;
		return BEGINS_BY_HELLO;
	}
	return session_found(fallback, FORWARDED_STARTING);
}

/* NEXT_PROGRAM: the server is known. Else an XDP action. lb_slow has seen the packet, or lb: a SYN of usual shape. */
inline_always int handle_session(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct session_config *config;
	const struct service *service;
	struct session_work *w;
	struct decision d = {};
	enum verdict verdict;
	__u32 first = 0, number;

	w = bpf_map_lookup_elem(&session_works, &first);
	if (!w)
		return XDP_DROP;
	__builtin_memset(&w->packet, 0, sizeof(w->packet));
	if (parse_frame(&w->packet, ctx, data, end) != PARSED)
		return XDP_DROP;
	number = service_number_of(&w->packet);
	service = service_by_number(number);
	if (!service)
		return XDP_DROP;
	number = service->number; /* of all its VIPs */
	first = service->session;
	config = bpf_map_lookup_elem(&session_configs, &first);
	if (!config)
		return XDP_DROP;
	if (!is_syn(&w->packet) || is_traced())
		read_timestamp(ctx, &w->packet, &d.carried);
	if (!is_syn(&w->packet)) {
		int begins;

		w->echo = d.carried.at ? d.carried.echo : 0;
		w->timestamp = d.carried.timestamp;
		w->timestamp_at = d.carried.at;
		w->frame = bpf_xdp_get_buff_len(ctx);
		connection_of(&w->key, &w->packet, service);
		begins = session_begin(ctx, w, service, config);
		verdict = begins == BEGINS_BY_HELLO ? session_hello(ctx, w, service, config) : begins;
	} else {
		w->fallback = propose_server(&w->packet, service, 1);
		verdict = w->fallback == NO_ID ? DROPPED_NO_SERVER : session_answer(ctx, w, service, config);
	}
	if (verdict == VERDICT_CONTINUE)
		return NEXT_PROGRAM;
	count_verdict(number, verdict, w->packet.length);
	if (is_traced())
		report(&w->packet, &d, number, verdict);
	return verdict == ANSWERED_SYN || verdict == ANSWERED_HELLO ? XDP_TX : XDP_DROP;
}
