/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ingress.h - a segment from a client: finds its socket and restores TSecr. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "wire/timestamp.h"
#include "server/agent.h"
#include "server/verdict.h"
#include "server/socket/socket.h"
#include "server/flow/flow.h"
#include "server/timestamp/orphan.h"
#include "server/timestamp/rewrite.h"
#include "server/timestamp/translated.h"
#include "server/takeover/reset_old.h"
#include "server/takeover/take_over.h"
#include "server/walk/restore.h"

/* Without timestamps: a load balancer may have begun the connection. */
static __noinline enum agent_verdict restore_nothing(struct __sk_buff *skb, const struct served *served, struct flow *f)
{
	enum agent_verdict verdict = AGENT_CONTINUE;
	struct bpf_sock *sk;
	__u32 unused;

	if (!(f->tcp_flags & TCP_FLAG_ACK_BIT))
		return INGRESS_NO_TIMESTAMP;
	sk = socket_find(skb, f->client, &f->key, f->client_port);
	if (!sk)
		return INGRESS_NO_TIMESTAMP;
	if (sk->state == SOCKET_LISTEN)
		verdict = take_over(skb, sk, served, f, &unused);
	else if (sk->state == SOCKET_TIME_WAIT)
		verdict = reset_old(skb, sk, served, f);
	bpf_sk_release(sk);
	return verdict == AGENT_CONTINUE ? INGRESS_NO_TIMESTAMP : verdict;
}

inline_always enum agent_verdict restore(struct __sk_buff *skb)
{
	const struct served *served;
	struct flow f = {};
	enum agent_verdict verdict;
	struct bpf_sock *sk;
	_Bool connected = 0;
	__u32 restored = 0;

	if (skb->pkt_type != 0 /* PACKET_HOST */ || !flow_parse(&f, skb, FROM_CLIENT))
		return INGRESS_NOT_SERVED;
	served = served_find(&f.key);
	if (!served || !served->flags)
		return INGRESS_NOT_SERVED;
	if (flow_find_timestamp(&f, skb) != TIMESTAMP_FOUND)
		return served->flags & (SERVED_SESSION | SERVED_PROXIED) ? restore_nothing(skb, served, &f)
									 : INGRESS_NO_TIMESTAMP;
	if (!f.echo || !(f.tcp_flags & TCP_FLAG_ACK_BIT))
		return INGRESS_NO_ECHO;
	if (rewritten_before(skb, &f, FROM_CLIENT))
		return INGRESS_RESTORED_BELOW;
	sk = socket_find(skb, f.client, &f.key, f.client_port);
	if (!sk) {
		verdict = restore_translated(served, &f, &restored);
		connected = verdict != INGRESS_NO_SOCKET;
		goto out;
	}
	if (sk->state == SOCKET_NEW_SYN_RECV) {
		verdict = served->flags & SERVED_TAKES_OVER && echoes_beginning(served, &f)
				  ? reset_old(skb, sk, served, &f)
				  : AGENT_CONTINUE;
		if (verdict == AGENT_CONTINUE)
			verdict = restore_request(sk, served, &f, &restored);
	} else if (sk->state == SOCKET_LISTEN && served->flags & SERVED_TAKES_OVER &&
		   (verdict = take_over(skb, sk, served, &f, &restored)) != AGENT_CONTINUE) {
		connected = 1;
	} else if (sk->state == SOCKET_LISTEN) { /* which need not be who gets it */
		verdict = restore_translated(served, &f, &restored);
		connected = verdict != INGRESS_NO_SOCKET;
		if (!connected)
			verdict = restore_syn_cookie(skb, sk, served, &f, &restored);
	} else if (sk->state == SOCKET_TIME_WAIT) {
		connected = 1;
		if (served->flags & SERVED_TAKES_OVER && echoes_beginning(served, &f)) {
			verdict = reset_old(skb, sk, served, &f);
			if (verdict == AGENT_CONTINUE)
				verdict = INGRESS_DROPPED_BEFORE;
		} else {
			verdict = restore_time_wait(sk, served, &f, &restored);
		}
	} else {
		connected = 1;
		verdict = restore_connection(skb, sk, served, &f, &restored);
	}
	bpf_sk_release(sk);
out:
	if (verdict >= INGRESS_RESTORED_REQUEST && verdict <= INGRESS_RESTORED_TRANSLATED)
		rewrite(skb, &f, FROM_CLIENT, bpf_htonl(restored));
	if (!connected && (verdict == INGRESS_NO_SOCKET || verdict == INGRESS_BAD_COOKIE) &&
	    is_first_orphan(skb, served, &f))
		return INGRESS_DROPPED_STRAY;
	return verdict;
}
