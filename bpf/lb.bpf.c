// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* lb.bpf.c - the load balancer: parse -> service -> steer -> send -> count. What each program is for: README.md. */
#include "wire/kernel.h"
#include "lb/walk/slow_path.h"
#include "lb/state/btf.h"
#include "lb/affinity/deferred.h"
#include "lb/affinity/replica_table.h"
#include "lb/send/release.h"
#include "lb/walk/ask.h"
#include "lb/walk/check.h"
#include "lb/walk/enter.h"
#include "lb/walk/function.h"
#include "lb/walk/message.h"
#include "lb/walk/session.h"
#include "lb/walk/tail_calls.h"
#include "lb/walk/tier.h"

SEC("xdp.frags")
int lb_slow(struct xdp_md *ctx)
{
	return enter_slow(ctx);
}

SEC("xdp.frags")
int lb_slow_tier(struct xdp_md *ctx)
{
	return final_action(ctx, slow_path(ctx, INGRESS_TIER1)); /* no service has both */
}

/* A packet from inside an answer of another load balancer, or of this one's own replicas. */
SEC("xdp.frags")
int lb_slow_peer(struct xdp_md *ctx)
{
	return final_action(ctx, slow_path(ctx, INGRESS_PEER)); /* an answered packet does not ask again */
}

SEC("xdp.frags")
int lb_session(struct xdp_md *ctx)
{
	int action = handle_session(ctx);

	if (action == NEXT_PROGRAM)
		bpf_tail_call(ctx, &tail_calls, CALL_SLOW_PEER);
	return final_action(ctx, action);
}

SEC("xdp.frags")
int lb_ask(struct xdp_md *ctx)
{
	_Bool function;
	int action = handle_ask(ctx, &function);

	if (action == NEXT_PROGRAM && function) /* constants: a known index is a jump */
		bpf_tail_call(ctx, &tail_calls, CALL_FUNCTION_PEER);
	if (action == NEXT_PROGRAM)
		bpf_tail_call(ctx, &tail_calls, CALL_SLOW_PEER);
	return final_action(ctx, action);
}

SEC("xdp.frags")
int lb_message(struct xdp_md *ctx)
{
	enum message_for message;
	int action = handle_message(ctx, &message);

	if (action == NEXT_PROGRAM && message == MESSAGE_FOR_FUNCTION)
		bpf_tail_call(ctx, &tail_calls, CALL_FUNCTION_PEER);
	if (action == NEXT_PROGRAM && message == MESSAGE_FOR_SERVER)
		bpf_tail_call(ctx, &tail_calls, CALL_SLOW_PEER);
	if (action == NEXT_PROGRAM)
		bpf_tail_call(ctx, &tail_calls, CALL_SLOW);
	return final_action(ctx, action);
}

SEC("xdp.frags")
int lb_function(struct xdp_md *ctx)
{
	_Bool ours;
	int action = handle_function(ctx, 0, &ours);

	if (action == NEXT_PROGRAM && ours)
		bpf_tail_call(ctx, &tail_calls, CALL_ASK);
	if (action == NEXT_PROGRAM)
		bpf_tail_call(ctx, &tail_calls, CALL_SLOW);
	return final_action(ctx, action);
}

SEC("xdp.frags")
int lb_function_peer(struct xdp_md *ctx)
{
	_Bool ours;

	return final_action(ctx, handle_function(ctx, 1, &ours)); /* an answered packet does not ask again */
}

SEC("tc")
int lb_release(struct __sk_buff *skb)
{
	return release(skb);
}

SEC("xdp.frags")
int lb(struct xdp_md *ctx)
{
	return enter(ctx);
}

SEC("xdp.frags")
int lb_rewritten(struct xdp_md *ctx)
{
	return enter_rewritten(ctx);
}

SEC("xdp.frags")
int lb_hello(struct xdp_md *ctx)
{
	return enter_session(ctx);
}

SEC("xdp.frags")
int lb_syn(struct xdp_md *ctx)
{
	return enter_syn(ctx);
}

SEC("xdp.frags")
int lb_replicated(struct xdp_md *ctx)
{
	return enter_replicated(ctx);
}

SEC("xdp.frags")
int lb_check(struct xdp_md *ctx)
{
	return send_check(ctx);
}

SEC("xdp.frags")
int flush_counts(struct xdp_md *ctx)
{
	deferred_flush_all();
	return XDP_PASS;
}

SEC("xdp.frags")
int replica_insert(struct xdp_md *ctx)
{
	replica_insert_batch();
	return XDP_PASS;
}
