/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* enter.h - a frame from a device: decapsulates it at a second tier, tries the fast path, or hands it on. */
#pragma once

#include "wire/kernel.h"
#include "lb/state/counters.h"
#include "lb/state/functions.h"
#include "lb/state/ring.h"
#include "lb/state/trace.h"
#include "lb/state/verdict.h"
#include "lb/state/vips.h"
#include "lb/walk/fast_frame.h"
#include "lb/walk/fast_replicated.h"
#include "lb/walk/fast_session.h"
#include "lb/walk/fast_shape.h"
#include "lb/walk/fast_syn.h"
#include "lb/walk/peer_frame.h"
#include "lb/walk/slow_path.h"
#include "lb/walk/tail_calls.h"
#include "lb/walk/tier.h"

/* What is not for the fast path. */
inline_always int leave_fast_path(struct xdp_md *ctx, __u8 ingress)
{
	if (replica_enabled && is_for_peer((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		bpf_tail_call(ctx, &tail_calls, CALL_MESSAGE);
	if (ingress == INGRESS_TIER1) /* constants: a known index is a jump */
		bpf_tail_call(ctx, &tail_calls, CALL_SLOW_TIER);
	if (functions_enabled)
		bpf_tail_call(ctx, &tail_calls, CALL_FUNCTION);
	bpf_tail_call(ctx, &tail_calls, CALL_SLOW);
	return XDP_PASS;
}

inline_always int enter(struct xdp_md *ctx)
{
	_Bool traced = trace_enabled && trace_begin(ctx); /* before anything changes it */
	volatile __u8 ingress = INGRESS_DIRECT, more = 0;
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
	action = traced ? NOT_FAST : fast_frame(ctx, &more);
	if (action != NOT_FAST)
		return action;
	if (more & MORE_SYN && ingress != INGRESS_TIER1)
		bpf_tail_call(ctx, &tail_calls, CALL_SYN);
	if (more & MORE_SESSION && ingress != INGRESS_TIER1)
		bpf_tail_call(ctx, &tail_calls, CALL_HELLO);
	if (more & MORE_REWRITTEN && ingress != INGRESS_TIER1)
		bpf_tail_call(ctx, &tail_calls, CALL_REWRITTEN);
	if (more & MORE_REPLICATED && ingress != INGRESS_TIER1)
		bpf_tail_call(ctx, &tail_calls, CALL_REPLICATED);
	return leave_fast_path(ctx, ingress);
}

/* lb_slow */
inline_always int enter_slow(struct xdp_md *ctx)
{
	int action = slow_path(ctx, INGRESS_DIRECT);

	if (action == NEXT_PROGRAM)
		bpf_tail_call(ctx, &tail_calls, CALL_ASK);
	if (action == START_SESSION)
		bpf_tail_call(ctx, &tail_calls, CALL_SESSION);
	return final_action(ctx, action);
}

/* lb_rewritten: the fast path of what is more than encapsulated. A program of its own, so that other packets do not pay
 * for it. */
inline_always int enter_rewritten(struct xdp_md *ctx)
{
	int action = fast_frame(ctx, 0);

	return action != NOT_FAST ? action : leave_fast_path(ctx, INGRESS_DIRECT);
}

/* lb_syn: a SYN of usual shape that a load balancer answers, or that has candidates. */
inline_always int enter_syn(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct ethhdr *eth = data;
	volatile __u8 answers = 0;
	int action;

	if ((void *)(eth + 1) > end)
		return XDP_DROP;
	action = eth->h_proto == bpf_htons(ETH_P_IPV6) ? fast_syn(ctx, 1, &answers) : fast_syn(ctx, 0, &answers);
	if (action != NOT_FAST)
		return action;
	if (answers)
		bpf_tail_call(ctx, &tail_calls, CALL_SESSION);
	return leave_fast_path(ctx, INGRESS_DIRECT);
}

/* lb_hello: a packet that may begin a connection of session tls. */
inline_always int enter_session(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct ethhdr *eth = data;
	int action;

	if ((void *)(eth + 1) > end)
		return XDP_DROP;
	action = eth->h_proto == bpf_htons(ETH_P_IPV6) ? fast_session(ctx, 1) : fast_session(ctx, 0);
	return action != NOT_FAST ? action : leave_fast_path(ctx, INGRESS_DIRECT);
}

/* lb_replicated: the same of replicated connections. */
inline_always int enter_replicated(struct xdp_md *ctx)
{
	int action = fast_replicated(ctx);

	return action != NOT_FAST ? action : leave_fast_path(ctx, INGRESS_DIRECT);
}
