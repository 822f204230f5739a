/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* function.h - packets to network functions, and those that functions send: Anolis 3.2 and 4. This node is the
 * functions' gateway. What a function sends makes the entry for the way back, so that the answer finds the same
 * function by whatever load balancer. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "wire/reversed.h"
#include "lb/packet/peer_message.h"
#include "lb/packet/quote.h"
#include "lb/state/counters.h"
#include "lb/state/functions.h"
#include "lb/state/node.h"
#include "lb/state/replicas.h"
#include "lb/state/ring.h"
#include "lb/state/service.h"
#include "lb/state/trace.h"
#include "lb/state/verdict.h"
#include "lb/affinity/chain.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/replicated.h"
#include "lb/ladder/slow.h"
#include "lb/ladder/fragments.h"
#include "lb/ladder/replicas.h"
#include "lb/send/answer.h"
#include "lb/send/l2.h"
#include "lb/send/peer.h"
#include "lb/send/route.h"
#include "lb/send/to_server.h"
#include "lb/walk/ask.h"
#include "lb/walk/report.h"

/* The flow that a packet to or from functions is of: its own, the one that it quotes, or seen the other way round.
 * *known is not set where it is of none. */
inline_always const struct packet *function_flow(struct xdp_md *ctx, struct packet *p, struct packet *other,
						 _Bool outbound, _Bool *quoted, _Bool *known)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	*known = 1;
	if (is_icmp(p) && !echo_ports(p, data, end)) {
		*quoted = 1;
		if (!outbound && !p->fragment && parse_quote(other, p, data, end))
			return other;
		*known = 0;
		return p;
	}
	if (!outbound)
		return p;
	reversed(other, p);
	return other;
}

/* Whose the connection is that a function's packet is of: known here, or to be asked. VERDICT_CONTINUE: it is the
 * function's. */
inline_always enum verdict function_claim(struct xdp_md *ctx, const struct packet *p, const struct packet *flow,
					  const struct service *service, __u32 id, struct replica_step *s)
{
	const struct replica_current *now = replicas_now();
	const struct replica_config *config = now ? replica_config_now(now) : 0;
	struct replica_known known = {};
	enum verdict verdict;
	int outcome;

	if (!(service->flags & SERVICE_REPLICATED) || !has_ring(now))
		return VERDICT_CONTINUE;
	if (!config)
		return only_looks_up(flow, 0) ? VERDICT_CONTINUE : DROPPED_OTHER_VIEW; /* as ask does */
	s->service = service->number;
	s->key = peer_key(&config->key_hash, flow);
	s->flags = PEER_OUTBOUND;
	s->owner = id;
	replica_usable(s->key, s->service, &known);
	if (known.owner && known.owner != id)
		return DROPPED_OTHER_FUNCTION;
	if (only_looks_up(flow, 0) || (known.owner && known.fresh))
		return VERDICT_CONTINUE;
	if (known.owner)
		s->flags |= PEER_KNOWN | PEER_RECORDED;
	outcome = replica_ask(s, 1, 1);
	if (outcome == REPLICA_SEND) {
		__u16 mtu = config->peers[s->to & (REPLICA_NODES - 1)].mtu;

		verdict = send_to_peer(ctx, p, s, p->l3);
		return verdict == DROPPED_TOO_BIG_QUIETLY ? answer_too_big(ctx, p, mtu - peer_outer_length(config))
							  : verdict;
	}
	if (outcome == REPLICA_DROP || s->owner == NO_ID)
		return s->verdict;
	return s->owner == id ? VERDICT_CONTINUE : DROPPED_OTHER_FUNCTION;
}

/* What an answer of another load balancer says of a function's packet. */
inline_always enum verdict function_by_answer(void)
{
	__u32 first = 0;
	const struct replica_answer *answer = bpf_map_lookup_elem(&received_answer, &first);

	if (!answer || !answer->owner)
		return DROPPED_TABLE_FULL;
	return answer->owner == answer->proposed ? VERDICT_CONTINUE : DROPPED_OTHER_FUNCTION;
}

/* To a function: as to any server, but that fragments and echoes are of its flows, too. */
inline_always enum verdict function_forward(struct xdp_md *ctx, struct packet *p, const struct packet *flow,
					    struct decision *d, __u32 number)
{
	enum verdict verdict;

	if (p->fragment == FRAGMENT_LATER)
		verdict = walk_later_fragment(p, d);
	else
		verdict = walk_flow(ctx, p, flow, d, number);
	return send_found(ctx, p, d, hide_from_verifier(d, verdict));
}

/* What becomes of a packet that a function sends. *action is set when it goes on. */
inline_always enum verdict walk_outbound(struct xdp_md *ctx, struct packet *p, const struct packet *flow, _Bool known,
					 const struct service *service, _Bool owner_known, struct replica_step *s,
					 int *action)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	enum verdict verdict = VERDICT_CONTINUE;
	__u32 id;

	if (owner_known) {
		verdict = function_by_answer();
	} else {
		id = data + sizeof(struct ethhdr) <= end ? function_by_mac(((struct ethhdr *)data)->h_source, service)
							 : NO_ID;
		if (id == NO_ID)
			verdict = PASSED_NO_SERVICE;
		else if (known && p->fragment != FRAGMENT_LATER)
			verdict = function_claim(ctx, p, flow, service, id, s);
	}
	if (verdict != VERDICT_CONTINUE)
		return verdict;
	*action = route_to_client(ctx, p);
	return RETURNED;
}

/* NEXT_PROGRAM: lb_ask if *ours, else the packet is not for functions. Else an XDP action. */
inline_always int handle_function(struct xdp_md *ctx, _Bool owner_known, _Bool *ours)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct replica_work *work = replica_work();
	struct decision d = { .owner_known = owner_known };
	const struct service *service;
	const struct packet *flow;
	enum verdict verdict;
	_Bool outbound, known, quoted = 0;
	__u32 number, first = 0;
	int action = XDP_PASS;
	struct packet *p;

	*ours = owner_known;
	if (!work || data + sizeof(struct ethhdr) > end)
		return XDP_DROP;
	p = &work->packet;
	if (!addressed_to_us(ctx, data) || parse_frame(p, ctx, data, end) != PARSED)
		return owner_known ? XDP_DROP : NEXT_PROGRAM;
	if (owner_known) {
		const struct replica_answer *answer = bpf_map_lookup_elem(&received_answer, &first);

		outbound = answer && answer->flags & PEER_OUTBOUND;
	} else {
		outbound = function_by_mac(((struct ethhdr *)data)->h_source, 0) != NO_ID;
	}
	flow = function_flow(ctx, p, &work->other, outbound, &quoted, &known);
	d.quoted = quoted;
	if (outbound) {
		if (!owner_known && function_service(p->destination, p->ipv6) == FUNCTION_HOST)
			return NEXT_PROGRAM;
		number = function_service(p->source, p->ipv6);
	} else {
		number = known ? function_service(flow->destination, p->ipv6) : 0;
	}
	service = number ? service_by_number(number) : 0;
	if (!service)
		return owner_known ? XDP_DROP : NEXT_PROGRAM;
	*ours = 1;
	if (outbound)
		verdict = walk_outbound(ctx, p, flow, known, service, owner_known, &work->step, &action);
	else
		verdict = function_forward(ctx, p, flow, &d, number);
	if (verdict == VERDICT_CONTINUE)
		return NEXT_PROGRAM;
	count_verdict(number, verdict, p->length);
	if (is_traced())
		report(p, &d, number, verdict);
	if (is_dropped(verdict))
		return XDP_DROP;
	if (verdict == ASKED_PEER)
		return transmit_to_peer(ctx, &work->step);
	if (verdict == FORWARDED_IN_FRAGMENTS)
		return order_fragments(ctx, d.service, d.server, d.id, d.stops_count);
	if (verdict == ANSWERED_TOO_BIG)
		return XDP_TX;
	if (is_forwarded(verdict) && d.server)
		return transmit(ctx, d.server);
	return action;
}
