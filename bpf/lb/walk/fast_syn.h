/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fast_syn.h - the fast path of SYNs that are more than sent to a server (lb_syn): this node answers them, or they have
 * candidates. With the options of most clients, untagged, and nothing behind them.
 *
 * Does to a packet what the long way does, or returns NOT_FAST before anything has changed.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/choices.h"
#include "wire/parse.h"
#include "wire/srh.h"
#include "lb/carrier/syn.h"
#include "lb/state/counters.h"
#include "lb/state/service.h"
#include "lb/state/sessions.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"
#include "lb/ladder/dispatched.h"
#include "lb/ladder/placed.h"
#include "lb/send/answer.h"
#include "lb/send/encapsulate.h"
#include "lb/send/l2.h"
#include "lb/send/srv6.h"
#include "lb/send/syn_ack.h"
#include "lb/walk/fast_find.h"
#include "lb/walk/fast_send.h"
#include "lb/walk/fast_shape.h"
#include "lb/walk/handshake.h"

#define FAST_SYN_OPTIONS 20 /* of a SYN that syn_read_usual reads, and of our answer */

/* The answer takes the place of the SYN, whatever is behind that is cut off. There was room for the SYN. */
inline_always _Bool fast_write_answer(struct xdp_md *ctx, const struct packet *p, const struct syn_ack *a, _Bool ipv6)
{
	int length = FAST_OPTIONS(ipv6) + FAST_SYN_OPTIONS;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp;
	__be32 *options;
	__u64 sum;

	if (end - data != length && bpf_xdp_adjust_tail(ctx, length - (int)(end - data)))
		return 0;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + length > end)
		return 0;
	tcp = data + FAST_L4(ipv6);
	options = (void *)(tcp + 1);
	swap_macs(data);
	sum = syn_ack_header(tcp, p, a);
	sum += syn_ack_write_ip(data + FAST_IP, p, sizeof(*tcp) + FAST_SYN_OPTIONS);
	for (int i = 0; i < FAST_SYN_OPTIONS / 4; i++) {
		options[i] = a->options[i];
		sum += a->options[i];
	}
	tcp->check = checksum_fold(sum);
	return 1;
}

/* See handle_session. An MSS of 0 is none, and so is its option in the answer. */
inline_always int fast_answer(struct xdp_md *ctx, struct packet *p, struct decision *d, _Bool ipv6)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const __be32 *destination = data + FAST_IP + (ipv6 ? 24 : 16);
	const struct tcphdr *tcp = data + FAST_L4(ipv6);
	const struct service *service = d->service;
	const struct session_config *config;
	__u32 session = service->session;
	enum verdict verdict = ANSWERED_SYN;
	struct syn_options syn;
	struct finding f = {};
	struct syn_ack a;

	config = bpf_map_lookup_elem(&session_configs, &session);
	if (!config || data + FAST_OPTIONS(ipv6) + FAST_SYN_OPTIONS > end ||
	    !syn_read_usual((const void *)(tcp + 1), tcp->doff * 4 - sizeof(*tcp), &syn) || !syn.mss)
		return NOT_FAST;
	for (int i = 0; i < (ipv6 ? 4 : 1); i++)
		p->destination[i] = destination[i];
	if (dispatched_by_placement(service))
		steer_by_slot(p, d);
	else
		steer_by_dispatch(d, &f);
	if (!d->server)
		verdict = DROPPED_NO_SERVER;
	else if (!answer_possible(p))
		verdict = DROPPED_IMPOSSIBLE_SOURCE;
	count_verdict(service->number, verdict, p->length);
	if (verdict != ANSWERED_SYN)
		return XDP_DROP;
	syn_answer(&a, p, service, config, &syn, tcp->seq, d->id);
	return fast_write_answer(ctx, p, &a, ipv6) ? XDP_TX : XDP_ABORTED; /* the verifier does not know its length */
}

/* To its first candidate, with the others as stops: see send_to_server. */
inline_always int fast_offer(struct xdp_md *ctx, const struct packet *p, struct decision *d)
{
	const struct service *service = d->service;
	const struct server *server;
	struct finding f = {};
	enum verdict verdict;
	_Bool segments;
	__u32 outer;

	if (!service->slots_count)
		return NOT_FAST;
	find_candidates(d, placement_cell(service, p->source, p->source_port, p->destination_port, p->ipv6));
	server = d->server;
	if (!server)
		return NOT_FAST;
	if (!d->stops_count)
		return fast_try(ctx, p, d, &f, FORWARDED_NEW);
	segments = service->forward == FORWARD_SRV6 && server->flags & SERVER_IPV6;
	outer = segments ? sizeof(struct ipv6hdr) + srh_length(d->stops_count)
			 : outer_length(server, 1, d->stops_count);
	if (server->flags & SERVER_NO_COOKIE || server->vlan || p->length + outer > server->mtu)
		return NOT_FAST;
	verdict = segments ? srv6_wrap(ctx, p, service, server, d) : gue_wrap(ctx, p, service, server, d);
	if (verdict != VERDICT_CONTINUE)
		return verdict == DROPPED_NO_HEADROOM ? NOT_FAST : XDP_ABORTED;
	d->service = service; /* lost in memory that a global function may write */
	d->server = server;
	dispatch_commit(d);
	fast_count(p, d, server, FORWARDED_NEW);
	return transmit(ctx, server);
}

/* lb has seen that the frame is for us. *answers: this node answers the service's SYNs. */
inline_always int fast_syn(struct xdp_md *ctx, _Bool ipv6, volatile __u8 *answers)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct tcphdr *tcp = data + FAST_L4(ipv6);
	struct decision d = {};
	volatile __u8 more = 0;
	__u32 fast, length;
	struct packet p;

	if (data + FAST_OPTIONS(ipv6) > end || !has_fast_shape(data, ipv6, IPPROTO_TCP))
		return NOT_FAST;
	length = fast_length(data, ipv6);
	if (FAST_IP + length > end - data || tcp->doff < 5 || FAST_L4(ipv6) - FAST_IP + tcp->doff * 4 > length)
		return NOT_FAST;
	d.service = fast_service(data, ipv6, IPPROTO_TCP, &more, &fast);
	if (!d.service)
		return NOT_FAST;
	p = fast_packet(data, length, ipv6, IPPROTO_TCP);
	p.l3 = FAST_IP;
	if (answers_syns(d.service)) { /* options of other orders are searched by the long way, which counts that */
		*answers = timestamp_fast(tcp, end) || has_no_timestamp(tcp, end);
		return *answers && is_only_syn(p.tcp_flags) ? fast_answer(ctx, &p, &d, ipv6) : NOT_FAST;
	}
	if (!goes_by_timestamps(d.service) || !is_fast_syn(tcp, end, p.tcp_flags))
		return NOT_FAST;
	return fast_offer(ctx, &p, &d);
}
