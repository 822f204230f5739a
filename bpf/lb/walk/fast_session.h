/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fast_session.h - session tls: how most connections begin, on a fast path of its own (lb_hello): the acknowledgement
 * between SYN and ClientHello, and a hello that comes whole, once and in order.
 *
 * Does to a packet what lb_slow, lb_session and lb_slow_peer do, or returns NOT_FAST before anything has changed but
 * the clients of a session, who stay the same when it is judged again (TestHellosTakeTheFastPathAsTheSlowPath).
 */
#pragma once

#include "wire/kernel.h"
#include "wire/cookie.h"
#include "wire/parse.h"
#include "wire/syn_cookie.h"
#include "lb/packet/client_hello.h"
#include "lb/state/counters.h"
#include "lb/state/holds.h"
#include "lb/state/service.h"
#include "lb/state/session_outcomes.h"
#include "lb/state/sessions.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/session.h"
#include "lb/ladder/dispatched.h"
#include "lb/ladder/placed.h"
#include "lb/walk/fast_send.h"
#include "lb/walk/fast_shape.h"
#include "lb/walk/handshake.h"

/* Does it answer our SYN-ACK, and nothing else? *hash: of the flow. */
inline_always _Bool fast_begins(const struct packet *p, const struct tcphdr *tcp, const struct service *service,
				const struct session_config *config, __u32 echo, __u8 parity, __u64 *hash)
{
	struct syn_cookie_flow flow;

	if (!(p->tcp_flags & TCP_FLAG_ACK_BIT) || !service->id_mask[parity & 1])
		return 0;
	*hash = session_hash(p, service, parity);
	if (cookie_plain(echo, *hash, service->cookie_bits))
		return 0;
	flow = syn_cookie_flow(p, bpf_htonl(bpf_ntohl(tcp->seq) - 1), bpf_htonl(echo));
	return syn_cookie_is_good(&config->syn_cookies, &flow, bpf_ntohl(tcp->ack_seq) - 1);
}

/* Where the connection goes that begins by the hello, and as what it counts. VERDICT_CONTINUE: it is not for here. */
inline_always enum verdict fast_by_hello(const struct packet *p, struct decision *d,
					 const struct session_config *config, const struct hello_text *text,
					 __u16 fallback, int *outcome)
{
	struct hello_found found = {};
	const __u64 *name;
	__u16 id = NO_ID;

	*outcome = hello_find(text, &found);
	if (*outcome == HELLO_MORE)
		return VERDICT_CONTINUE;
	if (*outcome == HELLO_COMPLETE && found.source != HELLO_NO_SESSION) {
		name = (const void *)hello_at(text, &found.at, HELLO_NAME);
		if (!name)
			return VERDICT_CONTINUE;
		*outcome = session_judge(d->service, config, p, found.source, name, &id);
	}
	steer_to(d, *outcome == SESSION_RESUMED ? id : fallback);
	return *outcome == SESSION_RESUMED ? FORWARDED_BY_SESSION : FORWARDED_NEW;
}

inline_always int fast_hello(struct xdp_md *ctx, const struct packet *p, struct decision *d,
			     const struct session_config *config, const struct hello_text *text, __be32 sequence,
			     __u32 echo, __u64 hash)
{
	struct session_begun begun = { .sequence = sequence };
	volatile __u8 verdict; /* unknown to the verifier, which walks what follows once */
	struct finding f = {};
	int action, outcome;

	if (session_begun_again(hash, sequence) || hold_waits(hash))
		return NOT_FAST;
	verdict = fast_by_hello(p, d, config, text, syn_cookie_fallback(echo, hash, d->service->cookie_bits), &outcome);
	if (verdict == VERDICT_CONTINUE)
		return NOT_FAST;
	begun.id = d->id;
	action = fast_try(ctx, p, d, &f, verdict);
	if (action == NOT_FAST)
		return NOT_FAST;
	if (verdict == FORWARDED_BY_SESSION)
		dispatch_commit(d);
	count_session(d->service->number, outcome);
	begun.at = session_now();
	session_begun_put(hash, &begun);
	return action;
}

/* lb has seen that the frame is for us. */
inline_always int fast_session(struct xdp_md *ctx, _Bool ipv6)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const __u32 headers = FAST_OPTIONS(ipv6) + FAST_TIMESTAMPS;
	const struct session_config *config;
	const struct tcphdr *tcp = data + FAST_L4(ipv6);
	struct hello_text text = { .bytes = data + headers, .end = end, .in_packet = 1 };
	struct decision d = {};
	volatile __u8 more = 0;
	__u32 fast, length, echo, session;
	struct packet p;
	__u64 hash;

	if (data + headers > end || !has_fast_shape(data, ipv6, IPPROTO_TCP))
		return NOT_FAST;
	length = fast_length(data, ipv6);
	if (FAST_IP + length > end - data)
		return NOT_FAST;
	echo = fast_echo(data, end, length, ipv6);
	d.service = fast_service(data, ipv6, IPPROTO_TCP, &more, &fast);
	if (!echo || !d.service || !(d.service->flags & SERVICE_SESSION))
		return NOT_FAST;
	session = d.service->session;
	config = bpf_map_lookup_elem(&session_configs, &session);
	p = fast_packet(data, length, ipv6, IPPROTO_TCP);
	if (!config || !fast_begins(&p, tcp, d.service, config, echo, echo >> (fast & 15) & 1, &hash))
		return NOT_FAST;
	text.length = FAST_IP + length - headers;
	if (!text.length) {
		count_verdict(d.service->number, DROPPED_HANDSHAKE, length);
		return XDP_DROP;
	}
	if (text.length > HELLO_MOST)
		return NOT_FAST;
	return fast_hello(ctx, &p, &d, config, &text, tcp->seq, echo, hash);
}
