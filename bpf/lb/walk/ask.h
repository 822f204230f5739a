/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ask.h - packets whose server other load balancers may know: they leave inside a question, and come back inside the
 * answer (lb/walk/message.h). */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "wire/reversed.h"
#include "wire/tunnel.h"
#include "lb/packet/peer_message.h"
#include "lb/packet/quote.h"
#include "lb/state/counters.h"
#include "lb/state/functions.h"
#include "lb/state/replicas.h"
#include "lb/state/ring.h"
#include "lb/state/service.h"
#include "lb/state/trace.h"
#include "lb/state/verdict.h"
#include "lb/affinity/chain.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/replicated.h"
#include "lb/ladder/slow.h"
#include "lb/ladder/replicas.h"
#include "lb/send/answer.h"
#include "lb/send/peer.h"
#include "lb/send/this_host.h"
#include "lb/walk/report.h"

/* No XDP actions: the caller hands the packet to another program. */
#define NEXT_PROGRAM (-2)
#define START_SESSION (-3) /* to the one for connections of session tls */

/* Where no program of the load balancer is left to hand the packet to. */
inline_always int final_action(struct xdp_md *ctx, int action)
{
	if (action == XDP_PASS)
		return pass_to_host(ctx);
	return action >= 0 ? action : XDP_DROP;
}

/* Working memory for a question or an answer, off the stack. One program uses it at a time: nothing interrupts it. */
struct replica_work {
	struct packet packet, other; /* other: the flow that is meant, if it is not that of the packet */
	struct replica_step step;
	struct peer_message message;
	struct tunnel tunnel; /* of a message: where it and its packet begin */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct replica_work);
} replica_works SEC(".maps");

inline_always struct replica_work *replica_work(void)
{
	__u32 first = 0;
	struct replica_work *work = bpf_map_lookup_elem(&replica_works, &first);

	if (work)
		__builtin_memset(work, 0, sizeof(*work));
	return work;
}

/* The packet is handled at this node: lb_slow_peer applies the answer. */
inline_always void publish_answer(__u16 owner, __u16 proposed, __u8 flags, _Bool full)
{
	__u32 first = 0;
	struct replica_answer *answer = bpf_map_lookup_elem(&received_answer, &first);

	if (!answer)
		return;
	answer->owner = owner;
	answer->proposed = proposed;
	answer->flags = flags;
	answer->full = full;
}

/* The flow of a packet that lb_slow left to ask about: its own, or the one that an ICMP error quotes. 0: there is none.
 */
inline_always const struct packet *asked_flow(struct xdp_md *ctx, struct packet *p, struct packet *quote)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (parse_frame(p, ctx, data, end) != PARSED)
		return 0;
	if (!is_icmp(p) || (functions_enabled && echo_ports(p, data, end)))
		return p;
	return parse_quote(quote, p, data, end) ? quote : 0;
}

/* Fills the question. VERDICT_CONTINUE: it can be asked. */
inline_always enum verdict ask_about(const struct packet *flow, _Bool quoted, const struct replica_config *config,
				     struct replica_step *s, _Bool *known, _Bool *begins)
{
	const struct service *service = service_by_number(service_number_of(flow));
	struct replica_known k = {};

	if (!service)
		return PASSED_NO_SERVICE;
	s->service = service->number;
	s->key = peer_key(&config->key_hash, flow);
	if (only_looks_up(flow, quoted))
		s->flags = PEER_LOOKUP;
	*begins = flow->protocol != IPPROTO_TCP || is_syn(flow);
	replica_usable(s->key, s->service, &k);
	*known = k.owner != NO_ID;
	s->owner = k.owner;
	if (!*known && !s->flags)
		s->owner = propose_server(flow, service, *begins);
	if (*known)
		s->flags |= PEER_KNOWN | PEER_RECORDED;
	if (s->owner == NO_ID) /* nobody takes new connections; others may know this one */
		s->flags = PEER_LOOKUP;
	return VERDICT_CONTINUE;
}

/* VERDICT_CONTINUE: the packet's way goes on here. */
inline_always enum verdict ask(struct xdp_md *ctx, struct packet *p, struct packet *quote, struct replica_step *s)
{
	const struct replica_current *now = replicas_now();
	const struct replica_config *config = now ? replica_config_now(now) : 0;
	_Bool known = 0, begins = 0;
	const struct packet *flow;
	enum verdict verdict;
	int outcome;

	if (!config)
		return DROPPED_OTHER_VIEW; /* others have the entries, and do not know this node yet */
	flow = asked_flow(ctx, p, quote);
	if (!flow)
		return DROPPED_MALFORMED;
	verdict = ask_about(flow, flow != p, config, s, &known, &begins);
	if (verdict != VERDICT_CONTINUE)
		return verdict;
	outcome = replica_ask(s, known, begins);
	if (outcome == REPLICA_SEND) {
		__u16 mtu = config->peers[s->to & (REPLICA_NODES - 1)].mtu;

		verdict = send_to_peer(ctx, p, s, p->l3);
		if (verdict != DROPPED_TOO_BIG_QUIETLY)
			return verdict;
		if (!known) /* a smaller packet will say that the connection lives */
			return answer_too_big(ctx, p, mtu - peer_outer_length(config));
		outcome = REPLICA_DELIVER;
	}
	if (outcome == REPLICA_DROP)
		return s->verdict;
	publish_answer(s->owner, s->proposed, s->flags, outcome == REPLICA_FALL_BACK);
	return VERDICT_CONTINUE;
}

inline_always _Bool is_of_functions(__u32 number)
{
	const struct service *service = functions_enabled ? service_by_number(number) : 0;

	return service && service->flags & SERVICE_FUNCTIONS;
}

/* NEXT_PROGRAM: this node sends the packet, to a server or to a function. Else an XDP action. */
inline_always int handle_ask(struct xdp_md *ctx, _Bool *function)
{
	struct replica_work *work = replica_work();
	struct packet *p;
	enum verdict verdict;

	if (!work)
		return XDP_DROP;
	p = &work->packet;
	verdict = ask(ctx, p, &work->other, &work->step);
	*function = is_of_functions(work->step.service);
	if (verdict == VERDICT_CONTINUE)
		return NEXT_PROGRAM;
	count_verdict(work->step.service, verdict, p->length);
	if (is_traced()) {
		struct decision d = {};

		report(p, &d, work->step.service, verdict);
	}
	if (verdict == ASKED_PEER)
		return transmit_to_peer(ctx, &work->step);
	if (verdict == ANSWERED_TOO_BIG)
		return XDP_TX;
	return is_dropped(verdict) ? XDP_DROP : XDP_PASS;
}
