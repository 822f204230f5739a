/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* tail_calls.h - the programs that lb hands packets to. */
#pragma once

#include "wire/kernel.h"
#include "lb/walk/tier.h"

int lb_slow(struct xdp_md *ctx);
int lb_slow_tier(struct xdp_md *ctx);
int lb_slow_peer(struct xdp_md *ctx);
int lb_rewritten(struct xdp_md *ctx);
int lb_replicated(struct xdp_md *ctx);
int lb_ask(struct xdp_md *ctx);
int lb_message(struct xdp_md *ctx);
int lb_function(struct xdp_md *ctx);
int lb_function_peer(struct xdp_md *ctx);
int lb_session(struct xdp_md *ctx);
int lb_hello(struct xdp_md *ctx);
int lb_syn(struct xdp_md *ctx);

/* Programs for packets that the fast path of lb does not handle: another one, the slow path by ingress, and the
 * programs that it hands packets to. Tail calls, because the programs do not fit on one stack, and a jump costs less
 * than a call. The kernel empties an array that neither a process nor a pin references: user space pins the array of
 * each attached program. */
enum {
	CALL_SLOW = INGRESS_DIRECT - 1,
	CALL_SLOW_TIER = INGRESS_TIER1 - 1,
	CALL_SLOW_PEER = INGRESS_PEER - 1,
	CALL_REWRITTEN,
	CALL_REPLICATED,
	CALL_ASK,
	CALL_MESSAGE,
	CALL_FUNCTION,
	CALL_FUNCTION_PEER,
	CALL_SESSION,
	CALL_HELLO,
	CALL_SYN,
	TAIL_CALLS
};

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, TAIL_CALLS);
	__uint(key_size, sizeof(__u32));
	__array(values, int(struct xdp_md *));
} tail_calls SEC(".maps") = { .values = {
				      [CALL_SLOW] = lb_slow,
				      [CALL_SLOW_TIER] = lb_slow_tier,
				      [CALL_SLOW_PEER] = lb_slow_peer,
				      [CALL_REWRITTEN] = lb_rewritten,
				      [CALL_REPLICATED] = lb_replicated,
				      [CALL_ASK] = lb_ask,
				      [CALL_MESSAGE] = lb_message,
				      [CALL_FUNCTION] = lb_function,
				      [CALL_FUNCTION_PEER] = lb_function_peer,
				      [CALL_SESSION] = lb_session,
				      [CALL_HELLO] = lb_hello,
				      [CALL_SYN] = lb_syn,
			      } };
