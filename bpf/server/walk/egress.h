/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* egress.h - a segment to a client: writes the cookie into TSval. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "wire/timestamp.h"
#include "server/agent.h"
#include "server/verdict.h"
#include "server/socket/socket.h"
#include "server/flow/flow.h"
#include "server/mptcp/withhold.h"
#include "server/timestamp/begin.h"
#include "server/timestamp/column.h"
#include "server/timestamp/hold_back.h"
#include "server/timestamp/mark.h"
#include "server/timestamp/renew.h"
#include "server/timestamp/rewrite.h"
#include "server/timestamp/translated.h"
#include "server/takeover/refused.h"
#include "server/walk/datagram.h"
#include "server/walk/probe.h"

inline_always enum agent_verdict no_timestamp(const struct flow *f)
{
	return f->search == TIMESTAMP_AUTHENTICATED ? EGRESS_UNMARKED_AUTHENTICATED
	       : f->tcp_flags & TCP_FLAG_RST_BIT    ? EGRESS_RESET_NO_TIMESTAMP
						    : EGRESS_NO_TIMESTAMP;
}

/* With a socket and its storage nothing else has to be looked up. */
inline_always enum agent_verdict mark_connection(struct __sk_buff *skb, struct flow *f, struct bpf_sock *full,
						 struct hold_back *h)
{
	__u32 t, w, now = current_generation(), delta;
	_Bool held = 0, unknown = 0;

	if (flow_find_timestamp(f, skb) != TIMESTAMP_FOUND)
		return no_timestamp(f);
	if (rewritten_before(skb, f, TO_CLIENT))
		return EGRESS_MARKED_ABOVE;
	t = bpf_ntohl(f->value);
	if (h->state != HOLD_BACK_MARKED || h->generation != now) {
		const struct served *served = served_find(&f->key);

		if (h->state == HOLD_BACK_NEW) {
			if (!served || !served->flags)
				return EGRESS_NOT_SERVED;
			unknown = mark_start(h, served, f, socket_address(full), t) == COLUMN_UNKNOWN;
		} else if (h->state == HOLD_BACK_MARKED) {
			mark_refresh(h, served, f, now, t);
		}
		if (h->state != HOLD_BACK_MARKED) {
			if (f->tcp_flags & TCP_FLAG_FIN_BIT)
				mark_remember(f, 0, 1);
			return h->state == HOLD_BACK_UNMARKED_USEC ? EGRESS_UNMARKED_USEC
								   : EGRESS_UNMARKED_OLDER_THAN_AGENT;
		}
	}
	w = hold_back_forward(h, t, &held) << (h->cookie_bits & 31) | h->cookie;
	delta = h->delta;
	if (f->tcp_flags & TCP_FLAG_FIN_BIT ||
	    (held &&
	     (full->state == SOCKET_FIN_WAIT1 || full->state == SOCKET_FIN_WAIT2 || full->state == SOCKET_CLOSING)))
		mark_remember(f, delta, 0);
	rewrite(skb, f, TO_CLIENT, bpf_htonl(w));
	if ((h->behind || h->generation != now) && renew(skb, f, full))
		return EGRESS_MARKED_RENEWED;
	if (unknown)
		return EGRESS_MARKED_UNKNOWN_COLUMN;
	return f->tcp_flags & TCP_FLAG_SYN_BIT ? EGRESS_MARKED_SYN_ACK : held ? EGRESS_MARKED_HELD_BACK : EGRESS_MARKED;
}

/* SYN-ACKs, SYN cookies, and answers for requests and TIME_WAIT: the clock alone, unless something is remembered. */
static __noinline enum agent_verdict mark_without_storage(struct __sk_buff *skb, struct flow *f,
							  const struct served *served, struct bpf_sock *sk)
{
	int column = served->flags & SERVED_HISTORY ? column_find(f) : 0;
	enum agent_verdict verdict = column < 0 ? EGRESS_MARKED_UNKNOWN_COLUMN : EGRESS_MARKED_SYN_ACK;
	__u32 v = bpf_ntohl(f->value), cookie = mark_cookie(served, f, served->epoch_parity, column < 0 ? 0 : column);

	if (!(f->tcp_flags & TCP_FLAG_SYN_BIT)) {
		const struct exception *exception;
		__u32 delta = START_DELTA;
		struct flow_key key;

		verdict = EGRESS_MARKED_NO_SOCKET;
		flow_key_fill(&key, f);
		exception = bpf_map_lookup_elem(&exceptions, &key);
		if (exception && exception->unmarked)
			return EGRESS_UNMARKED_OLDER_THAN_AGENT;
		if (exception)
			delta = exception->delta;
		v -= delta;
		/* The connection's cookie may be greater than this one: a V newer than its last. */
		if (!sk || (sk->state != SOCKET_LISTEN && sk->state != SOCKET_NEW_SYN_RECV))
			v++;
	} else if (sk && sk->state == SOCKET_NEW_SYN_RECV && request_uses_usec(socket_address(sk))) {
		return EGRESS_UNMARKED_USEC;
	}
	if (!(v << (served->cookie_bits & 31) | cookie))
		v++;
	rewrite(skb, f, TO_CLIENT, bpf_htonl(v << (served->cookie_bits & 31) | cookie));
	return verdict;
}

inline_always enum agent_verdict mark(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk, *full = sk ? bpf_sk_fullsock(sk) : 0;
	const struct served *served;
	enum agent_verdict verdict;
	struct hold_back *h = 0;
	struct flow f = {};

	if (!flow_parse(&f, skb, TO_CLIENT))
		return probing_datagrams && is_datagram_probe(skb) ? EGRESS_DROPPED_PROBE : EGRESS_NOT_SERVED;
	if (f.tcp_flags & (TCP_FLAG_SYN_BIT | TCP_FLAG_RST_BIT) && is_probe(skb, &f))
		return EGRESS_DROPPED_PROBE;
	if (f.header >= TCP_HEADER_MIN + sizeof(struct add_addr))
		withhold_port(skb, &f);
	/* Answers for connection requests are sent by the listener. Its storage is for the connections. */
	if (full && full->state == SOCKET_LISTEN)
		full = 0;
	if (full)
		h = bpf_sk_storage_get(&hold_backs, full, 0, 0);
	/* A child of a redirect onto a listener of ours has its storage, but the flow has its own. An RST leaves after
	 * its socket has given its port back. */
	if (h && (full->src_port == bpf_ntohs(f.key.port) || (!full->src_port && h->state == HOLD_BACK_MARKED)))
		return mark_connection(skb, &f, full, h);
	served = served_find(&f.key);
	if (!served ||
	    !(served->flags & (f.tcp_flags & TCP_FLAG_SYN_BIT ? SERVED_COOKIE : SERVED_COOKIE | SERVED_RETIRED)))
		return EGRESS_NOT_SERVED;
	if (flow_find_timestamp(&f, skb) != TIMESTAMP_FOUND) {
		verdict = no_timestamp(&f);
		if (verdict == EGRESS_RESET_NO_TIMESTAMP)
			translated_reset(&f);
		if (verdict == EGRESS_RESET_NO_TIMESTAMP && served->flags & SERVED_TAKES_OVER &&
		    (!full || full->type != SOCKET_TYPE_STREAM) && was_taken_over(skb, served, &f))
			return EGRESS_RESET_TAKEN_OVER;
		return verdict;
	}
	if (rewritten_before(skb, &f, TO_CLIENT))
		return is_renewing() ? EGRESS_COPIED : EGRESS_MARKED_ABOVE;
	if (is_translated(skb, &f, sk, full) ||
	    (!sk && f.tcp_flags & TCP_FLAG_SYN_BIT && is_translated_cookie(skb, &f))) {
		if (h) /* its listener's, as the kernel copied it */
			h->state = HOLD_BACK_TRANSLATED;
		if (!(f.tcp_flags & TCP_FLAG_SYN_BIT))
			return mark_translated(skb, &f, served);
		translated_handshake(&f);
		return mark_without_storage(skb, &f, served, 0);
	}
	/* The kernel's own sockets, which answer for TIME_WAIT before 6.13, are raw. */
	if (!full || full->type != SOCKET_TYPE_STREAM)
		return mark_without_storage(skb, &f, served, sk);
	if (!(f.tcp_flags & TCP_FLAG_SYN_BIT) &&
	    !begins_now(socket_address(full), served, bpf_ntohl(f.value), skb->gso_segs)) {
		if (f.tcp_flags & TCP_FLAG_FIN_BIT)
			mark_remember(&f, 0, 1);
		return EGRESS_UNMARKED_OLDER_THAN_AGENT;
	}
	/* Another listener's child; or TCP Fast Open: the connection is there before its SYN-ACK. */
	h = bpf_sk_storage_get(&hold_backs, full, 0, BPF_SK_STORAGE_GET_F_CREATE);
	return h ? mark_connection(skb, &f, full, h) : EGRESS_NOT_SERVED;
}
