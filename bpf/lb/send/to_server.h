/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* to_server.h - send a packet of any shape to its server by the way of its service: does it fit, which timestamp, which
 * header. */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/parse.h"
#include "wire/srh.h"
#include "lb/carrier/carried.h"
#include "lb/state/answers.h"
#include "lb/state/counters.h"
#include "lb/state/orders.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"
#include "lb/send/answer.h"
#include "lb/send/encapsulate.h"
#include "lb/send/fragment.h"
#include "lb/send/l2.h"
#include "lb/send/nat.h"
#include "lb/send/predecessor.h"
#include "lb/send/srv6.h"
#include "lb/send/through.h"

inline_always enum forward forward_of(const struct service *service, const struct server *server, __u32 stops)
{
	if (server->flags & SERVER_PREDECESSOR)
		return server->flags >> SERVER_FORWARD_SHIFT;
	return stops && !(service->forward == FORWARD_SRV6 && server->flags & SERVER_IPV6) ? FORWARD_GUE
											   : service->forward;
}

/* Bytes that are put in front of a packet. */
static __noinline __u32 outer_to_server(const struct service *service, const struct server *server, __u32 stops)
{
	enum forward forward = forward_of(service, server, stops);

	if (forward == FORWARD_GUE)
		return outer_length(server, 1, stops);
	return is_ip_in_ip(forward) ? outer_length(server, 0, 0) + srh_length(stops) : 0;
}

/* An IPv6 packet of 1280 bytes is sent, whatever is said of the path: no client sends smaller ones (RFC 8200 5). */
inline_always _Bool is_too_big(const struct packet *p, const struct server *server, __u32 outer)
{
	return p->length + outer > server->mtu && (!p->ipv6 || p->length > IPV6_MIN_MTU);
}

/* A global function: see steer_slow. */
__noinline int send_to_server(struct xdp_md *ctx, const struct packet *p, const struct service *service,
			      const struct server *server, const struct decision *decided)
{
	enum verdict verdict;
	struct decision d;
	__u32 outer;

	if (!p || !service || !server || !decided)
		return DROPPED_MALFORMED;
	if (!(server->flags & SERVER_NEXT_HOP))
		return DROPPED_NO_NEXT_HOP;
	outer = outer_to_server(service, server, decided->stops_count);
	if (is_too_big(p, server, outer)) {
		if (!fragment_fits(p, service, decided, server->mtu - (int)outer))
			return answer_too_big(ctx, p, server->mtu - outer);
		if (!answer_leave(ANSWER_IN_FRAGMENTS))
			return DROPPED_FRAGMENT_LIMIT;
	}
	if (server->flags & SERVER_PREDECESSOR && !leaves_for_predecessor(ctx, p, server))
		return DROPPED_PREDECESSOR_LOOP;
	d = *decided;
	d.service = service;
	d.server = server;
	if (d.carried.changed && !write_echo(ctx, p, &d.carried))
		return DROPPED_MALFORMED;
	if (service->flags & SERVICE_THROUGH) {
		if (d.verdict == FORWARDED_BY_COOKIE && d.carried.at && !through_restore(ctx, p, &d))
			return DROPPED_NO_CLOCK;
		if (d.verdict == FORWARDED_STRIPPED && !through_strip(ctx, p, &d))
			return DROPPED_MALFORMED;
	}
	switch (forward_of(service, server, d.stops_count)) {
	case FORWARD_IPIP:
		verdict = send_ipip(ctx, p, server, d.verdict);
		break;
	case FORWARD_GUE:
		verdict = send_gue(ctx, p, service, server, decided);
		break;
	case FORWARD_SRV6:
		verdict = send_srv6(ctx, p, service, server, decided);
		break;
	case FORWARD_NAT:
		verdict = send_nat(ctx, p, server, d.verdict);
		break;
	default:
		verdict = send_l2(ctx, p, server, d.verdict);
	}
	if (verdict != decided->verdict ||
	    !is_too_big(p, server, outer_to_server(service, server, decided->stops_count)))
		return verdict;
	return FORWARDED_IN_FRAGMENTS;
}

/* syn_proxy: the first of a connection that a server gets is no SYN. */
inline_always _Bool begins_proxied(const struct service *service, enum verdict why)
{
	return why == FORWARDED_NEW && begins_connections(service) && !(service->flags & SERVICE_SESSION);
}

/* Sends a packet on if its server has been found, and counts it there. */
inline_always enum verdict send_found(struct xdp_md *ctx, const struct packet *p, struct decision *d, enum verdict why)
{
	const struct service *service = d->service;
	const struct server *server = d->server;
	enum verdict verdict;

	if (!is_forwarded(why) || !server)
		return why;
	verdict = send_to_server(ctx, p, service, server, d);
	d->service = service;
	d->server = server;
	if (verdict == why || verdict == FORWARDED_IN_FRAGMENTS)
		count_server(server->counter, is_syn(p) || begins_proxied(service, why),
			     why == FORWARDED_NEW || why == FORWARDED_BY_SESSION, p->length);
	return verdict;
}

/* The frame is as it goes to the server, but too big: it becomes an order for lb_release. Returns an XDP action. */
__noinline int order_fragments(struct xdp_md *ctx, const struct service *service, const struct server *server, __u16 id,
			       __u32 stops)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct fragment_order *order = (void *)eth->h_source;

	if (!service || !server || (void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	order->service = service->number;
	order->id = id;
	order->front = l2_length(server) + outer_to_server(service, server, stops);
	eth->h_proto = bpf_htons(ORDER_SEVERAL);
	return XDP_PASS;
}
