/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* message.h - what other load balancers ask and answer (lb/packet/peer_message.h): done with, sent on in place, or
 * opened, and its packet goes on here. */
#pragma once

#include "wire/kernel.h"
#include "wire/decapsulate.h"
#include "wire/gue.h"
#include "wire/parse.h"
#include "wire/tunnel.h"
#include "lb/packet/peer_message.h"
#include "lb/state/counters.h"
#include "lb/state/node.h"
#include "lb/state/ring.h"
#include "lb/state/verdict.h"
#include "lb/affinity/chain.h"
#include "lb/affinity/replicated.h"
#include "lb/ladder/slow.h"
#include "lb/send/answer.h"
#include "lb/send/peer.h"
#include "lb/walk/ask.h"
#include "lb/walk/peer_frame.h"

/* Answers where it came from: its sender's stack gets it at the port that it sent from. Returns an XDP action. */
__noinline int answer_ping(struct xdp_md *ctx, const struct tunnel *t)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct replica_current *now = replicas_now();
	const struct replica_config *config = now ? replica_config_now(now) : 0;
	const struct replica_view *view = now ? replica_view_now(now) : 0;
	__u32 version = view ? view->version : 0;
	struct peer_message m;
	struct udphdr *udp;
	__be32 address[4];
	__be16 port;
	void *at;

	if (!t || !config || data + sizeof(struct ethhdr) > end)
		return XDP_DROP;
	swap_macs(data);
	if (t->outer_ipv6) {
		struct ipv6hdr *ip6 = data + (t->l3 & 31);

		if ((void *)(ip6 + 1) > end)
			return XDP_DROP;
		__builtin_memcpy(address, &ip6->saddr, 16);
		__builtin_memcpy(&ip6->saddr, &ip6->daddr, 16);
		__builtin_memcpy(&ip6->daddr, address, 16);
		udp = (void *)(ip6 + 1);
	} else {
		struct iphdr *ip = data + (t->l3 & 31);

		if ((void *)(ip + 1) > end)
			return XDP_DROP;
		address[0] = ip->saddr;
		ip->saddr = ip->daddr;
		ip->daddr = address[0];
		udp = (void *)(ip + 1);
	}
	at = (void *)(udp + 1) + sizeof(struct gue_header);
	if (at + sizeof(m) > end)
		return XDP_DROP;
	port = udp->source;
	udp->source = udp->dest;
	udp->dest = port;
	udp->check = 0;
	__builtin_memcpy(&m, at, sizeof(m));
	m.kind = PEER_PONG;
	m.last = bpf_htons(config->self);
	m.owner = bpf_htons(version >> 16);
	m.proposed = bpf_htons(version);
	m.mac = peer_mac(m.flags & PEER_PARITY ? &config->mac_hash[1] : &config->mac_hash[0], &m, 0,
			 bpf_ntohs(m.forwarder));
	__builtin_memcpy(at, &m, sizeof(m));
	return XDP_TX;
}

/* Handles a message. VERDICT_CONTINUE: it is opened, and its packet is handled here. ANSWERED_PEER: it was a ping. */
inline_always enum verdict walk_message(struct xdp_md *ctx, struct replica_work *work)
{
	const struct peer_message *m = &work->message;
	const struct tunnel *t = &work->tunnel;
	struct replica_step *s = &work->step;
	struct packet *p = &work->packet;
	const struct replica_current *now = replicas_now();
	const struct replica_config *config = now ? replica_config_now(now) : 0;
	const struct packet *flow;
	int outcome;

	if (!config)
		return DROPPED_OTHER_VIEW;
	if (m->kind == PEER_PING)
		return message_is_genuine(config, m, 0) ? ANSWERED_PEER : DROPPED_FORGED;
	if (m->kind > PEER_OWNS || !m->kind)
		return DROPPED_FORGED;
	flow = message_flow(ctx, t, p, &work->other, m->flags & PEER_OUTBOUND);
	if (!flow)
		return DROPPED_FORGED;
	s->key = peer_key(&config->key_hash, flow);
	if (!message_is_genuine(config, m, s->key))
		return DROPPED_FORGED;
	s->service = service_number_of(flow);
	if (!s->service)
		return DROPPED_NO_SERVER;
	s->kind = m->kind;
	s->flags = m->flags & ~PEER_PARITY;
	s->hops = m->hops;
	s->forwarder = bpf_ntohs(m->forwarder);
	s->last = bpf_ntohs(m->last);
	s->owner = bpf_ntohs(m->owner);
	s->proposed = bpf_ntohs(m->proposed);
	s->chain = bpf_ntohl(m->chain);
	s->to = config->self;
	outcome = replica_receive(s);
	if (outcome == REPLICA_SEND) {
		p->tos = t->tos; /* what was congested so far is known at the end */
		return send_to_peer(ctx, p, s, t->inner);
	}
	if (outcome == REPLICA_DROP)
		return s->verdict;
	publish_answer(s->owner, s->proposed, s->flags, outcome == REPLICA_FALL_BACK);
	if (!tunnel_copy_congestion(t, (void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return DROPPED_CONGESTED;
	return tunnel_strip(ctx, t) ? VERDICT_CONTINUE : DROPPED_MALFORMED;
}

/* What a frame was. */
enum message_for { MESSAGE_FOR_NOBODY, MESSAGE_FOR_SERVER, MESSAGE_FOR_FUNCTION };

/* NEXT_PROGRAM: this node handles the packet inside, or the frame is no message: *message says which. Else an XDP
 * action. */
inline_always int handle_message(struct xdp_md *ctx, enum message_for *message)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct replica_work *work = replica_work();
	enum verdict verdict;

	if (!work)
		return XDP_DROP;
	*message = MESSAGE_FOR_NOBODY;
	if (data + sizeof(struct ethhdr) > end || !addressed_to_us(ctx, data) ||
	    !message_parse(&work->tunnel, &work->message, data, end))
		return NEXT_PROGRAM;
	verdict = walk_message(ctx, work);
	*message = is_of_functions(work->step.service) ? MESSAGE_FOR_FUNCTION : MESSAGE_FOR_SERVER;
	if (verdict == VERDICT_CONTINUE)
		return NEXT_PROGRAM;
	count_verdict(work->step.service, verdict == ASKED_PEER ? PASSED_ON_TO_PEER : verdict, work->packet.length);
	if (verdict == ANSWERED_PEER)
		return answer_ping(ctx, &work->tunnel);
	return verdict == ASKED_PEER ? transmit_to_peer(ctx, &work->step) : XDP_DROP;
}
