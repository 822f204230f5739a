// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* lb.bpf.c - the load balancer: parse -> service -> steer -> send -> count. */
#include "wire/kernel.h"

#include "wire/checksum.h"
#include "wire/siphash.h"
#include "lb/packet/aes.h"
#include "wire/parse.h"
#include "wire/link_header.h"
#include "wire/gue.h"
#include "wire/srh.h"
#include "lb/packet/quote.h"
#include "wire/reversed.h"
#include "wire/mix.h"
#include "lb/packet/peer_message.h"
#include "lb/packet/client_hello.h"

#include "wire/timestamp.h"
#include "wire/cookie.h"
#include "lb/carrier/carried.h"
#include "lb/carrier/connection_id.h"
#include "wire/syn_cookie.h"
#include "lb/carrier/syn.h"
#include "lb/carrier/session_id.h"

#include "lb/state/verdict.h"
#include "lb/state/vips.h"
#include "wire/choices.h"
#include "lb/state/service.h"
#include "lb/state/rounds.h"
#include "lb/state/counters.h"
#include "lb/state/node.h"
#include "lb/state/least_loaded.h"
#include "lb/state/loads.h"
#include "lb/state/connections.h"
#include "lb/state/deferred.h"
#include "lb/state/local_table.h"
#include "lb/state/quic.h"
#include "lb/state/trace.h"
#include "lb/state/answers.h"
#include "lb/state/functions.h"
#include "lb/state/ring.h"
#include "lb/state/replicas.h"
#include "lb/state/sessions.h"
#include "lb/state/session_clients.h"
#include "lb/state/session_outcomes.h"
#include "lb/state/holds.h"
#include "lb/state/orders.h"

#include "lb/dispatch/turns.h"
#include "lb/dispatch/two_choices.h"
#include "lb/dispatch/least.h"
#include "lb/dispatch/classes.h"

#include "lb/affinity/quic.h"

#include "lb/affinity/decision.h"

#include "lb/affinity/placement.h"
#include "wire/history.h"
#include "lb/affinity/cookie.h"
#include "lb/affinity/closing.h"
#include "lb/affinity/local_table.h"
#include "lb/affinity/table.h"
#include "lb/affinity/assign.h"
#include "lb/affinity/deferred.h"
#include "lb/affinity/replica_table.h"
#include "lb/affinity/replicated.h"
#include "lb/affinity/chain.h"
#include "lb/affinity/session.h"

#include "lb/ladder/placed.h"
#include "lb/ladder/dispatched.h"
#include "lb/ladder/replicas.h"
#include "lb/ladder/session.h"
#include "lb/ladder/ladder.h"

#include "lb/ladder/fragments.h"

#include "lb/ladder/slow.h"

#include "lb/send/l2.h"
#include "lb/send/encapsulate.h"
#include "lb/send/srv6.h"
#include "lb/send/nat.h"
#include "lb/send/answer.h"
#include "lb/send/through.h"
#include "lb/send/syn_ack.h"
#include "lb/send/resize.h"
#include "lb/send/fragment.h"
#include "lb/send/to_server.h"
#include "wire/tunnel.h"
#include "wire/decapsulate.h"
#include "lb/send/route.h"
#include "lb/send/loop.h"
#include "lb/send/peer.h"
#include "lb/send/release.h"

#include "lb/walk/icmp.h"
#include "lb/walk/tier.h"
#include "lb/walk/return.h"
#include "lb/walk/report.h"
#include "lb/walk/fast_frame.h"
#include "lb/walk/ask.h"
#include "lb/walk/peer_frame.h"
#include "lb/walk/message.h"
#include "lb/walk/function.h"
#include "lb/walk/handshake.h"
#include "lb/walk/pieces.h"
#include "lb/walk/hold.h"
#include "lb/walk/session.h"
#include "lb/walk/check.h"

/* Keeps the names of the verdicts in BTF for user space. */
enum verdict *unused_verdict __attribute__((unused));
/* And those of the states of connections. */
enum connection_state *unused_state __attribute__((unused));
enum connection_flag *unused_flag __attribute__((unused));
struct ended_connection *unused_ended __attribute__((unused));
struct peer_message *unused_message __attribute__((unused));
struct trace_event *unused_event __attribute__((unused));
enum session_outcome *unused_outcome __attribute__((unused));

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
		return decision.service && decision.service->flags & SERVICE_SESSION ? START_SESSION : NEXT_PROGRAM;
	service = decision.service ? decision.service->number : 0;
	if ((verdict == PASSED_NO_SERVICE || verdict == PASSED_UNSUPPORTED) && would_loop(ctx, &packet))
		verdict = DROPPED_NO_SERVICE;
	count_verdict(service, verdict, packet.length);
	if (is_traced())
		report(&packet, &decision, service, verdict);
	if (is_dropped(verdict))
		return XDP_DROP;
	if (verdict == FORWARDED_IN_FRAGMENTS)
		return order_fragments(ctx, decision.service, decision.server, decision.id, decision.stops_count);
	if (verdict == ANSWERED_ECHO || verdict == ANSWERED_TOO_BIG)
		return ingress == INGRESS_TIER1 ? route_answer(ctx, packet.l3, packet.ipv6) : XDP_TX;
	if (is_forwarded(verdict) && decision.server)
		return ingress == INGRESS_PEER && decision.service && decision.service->flags & SERVICE_SESSION ? handle_hold(ctx, decision.server) :
													      transmit(ctx, decision.server);
	return action;
}

int lb_slow(struct xdp_md *ctx);
int lb_slow_tier(struct xdp_md *ctx);
int lb_slow_peer(struct xdp_md *ctx);
int lb_ask(struct xdp_md *ctx);
int lb_message(struct xdp_md *ctx);
int lb_function(struct xdp_md *ctx);
int lb_function_peer(struct xdp_md *ctx);
int lb_session(struct xdp_md *ctx);

/* Programs for packets that the fast path does not handle: the slow path by ingress, and the programs that it hands packets to. Tail calls,
 * because the programs do not fit on one stack, and a jump costs less than a call. The kernel empties an array that neither a process nor
 * a pin references: user space pins the array of each attached program. */
enum { CALL_ASK = INGRESS_PEER, CALL_MESSAGE, CALL_FUNCTION, CALL_FUNCTION_PEER, CALL_SESSION, TAIL_CALLS };

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, TAIL_CALLS);
	__uint(key_size, sizeof(__u32));
	__array(values, int(struct xdp_md *));
} tail_calls SEC(".maps") = { .values = {
	[INGRESS_DIRECT - 1] = lb_slow,
	[INGRESS_TIER1 - 1] = lb_slow_tier,
	[INGRESS_PEER - 1] = lb_slow_peer,
	[CALL_ASK] = lb_ask,
	[CALL_MESSAGE] = lb_message,
	[CALL_FUNCTION] = lb_function,
	[CALL_FUNCTION_PEER] = lb_function_peer,
	[CALL_SESSION] = lb_session,
} };

SEC("xdp.frags")
int lb_slow(struct xdp_md *ctx)
{
	int action = slow_path(ctx, INGRESS_DIRECT);

	if (action == NEXT_PROGRAM)
		bpf_tail_call(ctx, &tail_calls, CALL_ASK);
	if (action == START_SESSION)
		bpf_tail_call(ctx, &tail_calls, CALL_SESSION);
	return is_action(action) ? action : XDP_DROP;
}

SEC("xdp.frags")
int lb_slow_tier(struct xdp_md *ctx)
{
	int action = slow_path(ctx, INGRESS_TIER1);

	return is_action(action) ? action : XDP_DROP; /* no service has both */
}

/* A packet from inside an answer of another load balancer, or of this one's own replicas. */
SEC("xdp.frags")
int lb_slow_peer(struct xdp_md *ctx)
{
	int action = slow_path(ctx, INGRESS_PEER);

	return is_action(action) ? action : XDP_DROP; /* an answered packet does not ask again */
}

/* A connection of a service with session tls begins. */
SEC("xdp.frags")
int lb_session(struct xdp_md *ctx)
{
	int action = handle_session(ctx);

	if (action != NEXT_PROGRAM)
		return action;
	bpf_tail_call(ctx, &tail_calls, INGRESS_PEER - 1);
	return XDP_DROP;
}

SEC("xdp.frags")
int lb_ask(struct xdp_md *ctx)
{
	_Bool function;
	int action = handle_ask(ctx, &function);

	if (action != NEXT_PROGRAM)
		return action;
	if (function) /* constants: a known index is a jump */
		bpf_tail_call(ctx, &tail_calls, CALL_FUNCTION_PEER);
	bpf_tail_call(ctx, &tail_calls, INGRESS_PEER - 1);
	return XDP_DROP;
}

SEC("xdp.frags")
int lb_message(struct xdp_md *ctx)
{
	enum message_for message;
	int action = handle_message(ctx, &message);

	if (action != NEXT_PROGRAM)
		return action;
	if (message == MESSAGE_FOR_FUNCTION)
		bpf_tail_call(ctx, &tail_calls, CALL_FUNCTION_PEER);
	if (message == MESSAGE_FOR_SERVER)
		bpf_tail_call(ctx, &tail_calls, INGRESS_PEER - 1);
	bpf_tail_call(ctx, &tail_calls, INGRESS_DIRECT - 1);
	return XDP_DROP;
}

/* To and from network functions. */
SEC("xdp.frags")
int lb_function(struct xdp_md *ctx)
{
	_Bool ours;
	int action = handle_function(ctx, 0, &ours);

	if (action != NEXT_PROGRAM)
		return action;
	if (ours)
		bpf_tail_call(ctx, &tail_calls, CALL_ASK);
	bpf_tail_call(ctx, &tail_calls, INGRESS_DIRECT - 1);
	return XDP_DROP;
}

SEC("xdp.frags")
int lb_function_peer(struct xdp_md *ctx)
{
	_Bool ours;
	int action = handle_function(ctx, 1, &ours);

	return action == NEXT_PROGRAM ? XDP_DROP : action; /* an answered packet does not ask again */
}

/* At tc, behind lb: the only frames that concern it are its orders. */
SEC("tc")
int lb_release(struct __sk_buff *skb)
{
	return release(skb);
}

/* Has a network function sent the frame? What is known of a VIP's connections does not matter then: its answer must find the function. */
inline_always _Bool is_from_function(const void *data, const void *end)
{
	return functions_enabled && data + sizeof(struct ethhdr) <= end && function_by_mac(((const struct ethhdr *)data)->h_source, 0) != NO_ID;
}

SEC("xdp.frags")
int lb(struct xdp_md *ctx)
{
	_Bool traced = trace_enabled && trace_begin(ctx); /* before anything changes it */
	volatile __u8 ingress = INGRESS_DIRECT;
	int action;

	if (tier_enabled) {
		enum verdict verdict = decap_tier(ctx, &ingress);

		if (verdict != VERDICT_CONTINUE) {
			count_verdict(0, verdict, bpf_xdp_get_buff_len(ctx) - sizeof(struct ethhdr));
			if (traced && verdict == DROPPED_CONGESTED)
				uncover(ctx);
			if (traced)
				report_tunnel(ctx, verdict);
			return XDP_DROP;
		}
	}
	if (is_from_function((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		bpf_tail_call(ctx, &tail_calls, CALL_FUNCTION);
	action = traced ? NOT_FAST : fast_frame(ctx);
	if (action != NOT_FAST)
		return action;
	if (replica_enabled && is_for_peer((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		bpf_tail_call(ctx, &tail_calls, CALL_MESSAGE);
	if (ingress == INGRESS_TIER1) /* constants: a known index is a jump */
		bpf_tail_call(ctx, &tail_calls, INGRESS_TIER1 - 1);
	if (functions_enabled)
		bpf_tail_call(ctx, &tail_calls, CALL_FUNCTION);
	bpf_tail_call(ctx, &tail_calls, INGRESS_DIRECT - 1);
	return XDP_PASS;
}

/* Run by user space. */
SEC("xdp.frags")
int lb_check(struct xdp_md *ctx)
{
	return send_check(ctx);
}

/* Run by user space on each CPU: what has been sent there is counted. The frame says nothing. */
SEC("xdp.frags")
int flush_counts(struct xdp_md *ctx)
{
	__u32 first = 0;

	deferred_flush(bpf_map_lookup_elem(&deferred_lists, &first));
	return XDP_PASS;
}

/* Run by user space. The frame says nothing. */
SEC("xdp.frags")
int replica_insert(struct xdp_md *ctx)
{
	replica_insert_batch();
	return XDP_PASS;
}
