/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* slow_path.h - a packet of any shape: parse, find the service and the server, send, count. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "wire/reversed.h"
#include "lb/state/counters.h"
#include "lb/state/node.h"
#include "lb/state/orders.h"
#include "lb/state/service.h"
#include "lb/state/trace.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"
#include "lb/ladder/fragments.h"
#include "lb/ladder/slow.h"
#include "lb/send/l2.h"
#include "lb/send/loop.h"
#include "lb/send/to_server.h"
#include "lb/walk/ask.h"
#include "lb/walk/hold.h"
#include "lb/walk/icmp.h"
#include "lb/walk/report.h"
#include "lb/walk/return.h"
#include "lb/walk/tier.h"
#include "lb/walk/unserved.h"

static const enum verdict parsed_verdict[4] = {
	[PARSED] = VERDICT_CONTINUE,
	[PARSE_NOT_IP] = PASSED_NOT_IP,
	[PARSE_UNSUPPORTED] = PASSED_UNSUPPORTED,
	[PARSE_MALFORMED] = DROPPED_MALFORMED,
};

inline_always enum verdict walk(struct xdp_md *ctx, struct packet *p, struct decision *d, int *action)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet quote = {};
	const struct packet *flow = p;
	const __u32 *number = 0;
	enum verdict verdict;

	if (is_order(data, end))
		return DROPPED_FORGED;
	if (data + sizeof(struct ethhdr) > end || !addressed_to_us(ctx, data))
		return PASSED_NOT_IP;
	verdict = parsed_verdict[parse_frame(p, ctx, data, end) & 3];
	if (verdict != VERDICT_CONTINUE)
		return verdict;
	if (is_icmp(p) || p->fragment == FRAGMENT_LATER) {
		if (!find_vip_address(p))
			return walk_return(ctx, p, &quote, d, action);
		if (is_icmp(p)) {
			verdict = walk_icmp(ctx, p, &quote, &number);
			flow = &quote;
		} else {
			verdict = walk_later_fragment(p, d);
		}
	} else {
		number = find_vip_of(p);
		if (!number)
			return walk_return(ctx, p, &quote, d, action);
	}
	if (verdict == VERDICT_CONTINUE && number)
		verdict = walk_flow(ctx, p, flow, d, *number);
	return send_found(ctx, p, d, hide_from_verifier(d, verdict));
}

/* What is for no service, and would be the host's. What another load balancer has sent on has a service there: this
 * node is not up to date, and must not refuse it. */
inline_always enum verdict walk_unserved(struct xdp_md *ctx, const struct packet *p, int ingress, enum verdict passed)
{
	enum verdict verdict = ingress == INGRESS_DIRECT ? answer_unserved(ctx, p) : VERDICT_CONTINUE;

	if (verdict != VERDICT_CONTINUE)
		return verdict;
	return would_loop(ctx, p) ? DROPPED_NO_SERVICE : passed;
}

/* Every packet, of any shape. START_SESSION and NEXT_PROGRAM: of lb_session, of lb_ask. Else an XDP action. */
inline_always int slow_path(struct xdp_md *ctx, int ingress)
{
	struct packet packet = {};
	struct decision decision = {};
	int action = XDP_PASS;
	enum verdict verdict;
	__u32 service;

	decision.owner_known = ingress == INGRESS_PEER;
	verdict = walk(ctx, &packet, &decision, &action);
	if (verdict == VERDICT_CONTINUE)
		return decision.service && begins_connections(decision.service) ? START_SESSION : NEXT_PROGRAM;
	service = decision.service ? decision.service->number : 0;
	if (verdict == PASSED_NO_SERVICE || verdict == PASSED_UNSUPPORTED)
		verdict = walk_unserved(ctx, &packet, ingress, verdict);
	count_verdict(service, verdict, packet.length);
	if (is_traced())
		report(&packet, &decision, service, verdict);
	if (is_dropped(verdict))
		return XDP_DROP;
	if (verdict == FORWARDED_IN_FRAGMENTS)
		return order_fragments(ctx, decision.service, decision.server, decision.id, decision.stops_count);
	if (verdict == ANSWERED_ECHO || verdict == ANSWERED_TOO_BIG || verdict == ANSWERED_UNSERVED)
		return ingress == INGRESS_TIER1 ? route_answer(ctx, packet.l3, packet.ipv6) : XDP_TX;
	if (is_forwarded(verdict) && decision.server)
		return ingress == INGRESS_PEER && decision.service && decision.service->flags & SERVICE_SESSION
			       ? handle_hold(ctx, decision.server)
			       : transmit(ctx, decision.server);
	return action;
}
