/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* restore.h - restores TSecr by the state of the socket: a request, a listener, TIME_WAIT, a connection. Functions off
 * the common path are not inlined: packets meet cold caches, and the common path shall be short. */
#pragma once

#include "wire/kernel.h"
#include "server/agent.h"
#include "server/verdict.h"
#include "server/socket/socket.h"
#include "server/flow/flow.h"
#include "server/timestamp/begin.h"
#include "server/timestamp/column.h"
#include "server/timestamp/hold_back.h"
#include "server/timestamp/mark.h"
#include "server/timestamp/rewrite.h"
#include "server/takeover/reset_old.h"

/* A connection request: the packet that completes the handshake passes here. */
static __noinline enum agent_verdict restore_request(struct bpf_sock *sk, const struct served *served,
						     const struct flow *f, __u32 *restored)
{
	const struct tcp_request_sock *request = socket_address(sk);
	struct exception exception = { .unmarked = 1, .handshake_echo = f->echo };
	struct bpf_sock *listener;
	struct flow_key key;
	__u32 w = bpf_ntohl(f->echo), last = request_last(request);

	if (request_was_unmarked(request, last, w)) {
		if (rewritten_is(restored_request(f), f, f->echo))
			return INGRESS_RESTORED_BELOW;
		flow_key_fill(&key, f);
		bpf_map_update_elem(&exceptions, &key, &exception, BPF_ANY);
		return INGRESS_UNMARKED;
	}
	if (mark_read_tag(served, f, w) < 0)
		return INGRESS_BAD_COOKIE;
	*restored = mark_restore_request(last, served, w);
	if (served->flags & SERVED_HISTORY) {
		if (last - *restored > COLUMN_ECHO_MS)
			return INGRESS_BAD_COOKIE;
		column_note(f, w);
	}
	listener = bpf_get_listener_sock(sk);
	if (listener)
		bpf_sk_storage_get(&hold_backs, listener, 0, BPF_SK_STORAGE_GET_F_CREATE);
	rewritten_note(restored_request(f), f, bpf_htonl(*restored));
	return INGRESS_RESTORED_REQUEST;
}

/* The client echoes a SYN cookie. The kernel needs only the low bits of its timestamp, which have the options. */
static __noinline enum agent_verdict restore_syn_cookie(struct __sk_buff *skb, struct bpf_sock *sk,
							const struct served *served, const struct flow *f,
							__u32 *restored)
{
	struct bpf_sock *listener = bpf_get_listener_sock(sk);
	__u32 w = bpf_ntohl(f->echo);
	_Bool ours;

	if (served->flags & SERVED_HISTORY)
		ours = !rewritten_is(restored_request(f), f, f->echo) && answers_syn_cookie(skb, sk, f);
	else
		ours = mark_read_tag(served, f, w) >= 0;
	if (!ours)
		return rewritten_is(restored_request(f), f, f->echo) ? INGRESS_RESTORED_BELOW : INGRESS_BAD_COOKIE;
	if (served->flags & SERVED_HISTORY)
		column_note(f, w);
	if (listener)
		bpf_sk_storage_get(&hold_backs, listener, 0, BPF_SK_STORAGE_GET_F_CREATE);
	*restored = w >> (served->cookie_bits & 31);
	rewritten_note(restored_request(f), f, bpf_htonl(*restored));
	return INGRESS_RESTORED_SYN_COOKIE;
}

static __noinline enum agent_verdict restore_time_wait(struct bpf_sock *sk, const struct served *served,
						       const struct flow *f, __u32 *restored)
{
	const struct tcp_timewait_sock *socket = socket_address(sk);
	const struct exception *exception;
	struct flow_key key;
	__u32 now, delta = START_DELTA, w = bpf_ntohl(f->echo);

	if (mark_read_tag(served, f, w) < 0)
		return INGRESS_BAD_COOKIE;
	flow_key_fill(&key, f);
	exception = bpf_map_lookup_elem(&exceptions, &key);
	if (exception) {
		if (exception->unmarked)
			return INGRESS_UNMARKED;
		delta = exception->delta;
	}
	if (served->flags & SERVED_HISTORY)
		column_note(f, w);
	now = socket_clock_ms() + BPF_CORE_READ(socket, tw_ts_offset) - delta + CLOCK_SLACK_MS;
	*restored = delta + hold_back_extend(w >> (served->cookie_bits & 31), now, served->cookie_bits);
	return INGRESS_RESTORED_TIME_WAIT;
}

static __noinline enum agent_verdict restore_unmarked(struct __sk_buff *skb, struct bpf_sock *sk,
						      const struct served *served, const struct flow *f)
{
	enum agent_verdict verdict = AGENT_CONTINUE;

	if (served && served->flags & SERVED_TAKES_OVER)
		verdict = reset_old(skb, sk, served, f);
	return verdict == AGENT_CONTINUE ? INGRESS_UNMARKED : verdict;
}

inline_always enum agent_verdict restore_connection(struct __sk_buff *skb, struct bpf_sock *sk,
						    const struct served *served, const struct flow *f, __u32 *restored)
{
	struct bpf_sock *full = bpf_sk_fullsock(sk);
	__u32 w = bpf_ntohl(f->echo);
	enum agent_verdict verdict;
	struct hold_back *h;

	h = full ? bpf_sk_storage_get(&hold_backs, full, 0, 0) : 0;
	if (!h && full && begins_with(socket_address(full), served, f, w))
		h = bpf_sk_storage_get(&hold_backs, full, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!h)
		return restore_unmarked(skb, sk, served, f);
	if (h->state == HOLD_BACK_NEW) {
		const struct tcp_sock *tcp = socket_address(sk);

		if (served->flags & SERVED_HISTORY && echoes_handshake(tcp, served, w))
			column_note(f, w);
		mark_start(h, served, f, tcp, socket_clock_ms() + BPF_CORE_READ(tcp, tsoffset));
	}
	if (h->state != HOLD_BACK_MARKED)
		return restore_unmarked(skb, sk, served, f);
	if (hold_back_cookie(h, w) != h->cookie && !mark_adopt(h, served, f, w)) {
		verdict = restore_beginning(skb, sk, served, f, restored);
		return verdict == AGENT_CONTINUE ? INGRESS_BAD_COOKIE : verdict;
	}
	*restored = hold_back_restore(h, w);
	return INGRESS_RESTORED;
}
