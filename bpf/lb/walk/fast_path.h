/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fast_path.h - the fast path of TCP, for most packets: those of an established connection with a cookie where all
 * stacks put it first, then all that fast_find.h finds a server for. fast_datagram.h is that of UDP.
 *
 * Does to a packet what slow_path does, or returns NOT_FAST before anything has changed
 * (TestTheFastPathDoesWhatTheSlowPathDoes).
 */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/parse.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/cookie.h"
#include "lb/affinity/decision.h"
#include "lb/ladder/placed.h"
#include "lb/walk/fast_find.h"
#include "lb/walk/fast_send.h"
#include "lb/walk/fast_shape.h"

inline_always int fast_by_cookie(struct xdp_md *ctx, struct decision *d, const void *data, __u32 echo, __u8 parity,
				 __u32 length, _Bool ipv6, volatile __u8 *more)
{
	struct packet p = fast_packet(data, length, ipv6, IPPROTO_TCP);
	struct finding f = { .again = !more };

	p.tcp_flags = 0; /* fast_echo has seen them */
	steer_to(d, cookie_find(&p, d->service, echo, parity, &d->carried.plain));
	return fast_send(ctx, &p, d, &f, FORWARDED_BY_COOKIE, more);
}

inline_always int fast_others(struct xdp_md *ctx, struct decision *d, const void *data, const void *end, __u32 length,
			      _Bool ipv6, volatile __u8 *more)
{
	const struct packet p = fast_packet(data, length, ipv6, IPPROTO_TCP);
	const struct tcphdr *tcp = data + FAST_L4(ipv6);
	struct finding f = { .again = !more };
	enum verdict verdict;

	if (tcp->doff < 5 || FAST_L4(ipv6) - FAST_IP + tcp->doff * 4 > length)
		return NOT_FAST;
	verdict = fast_find(&p, d, &f, tcp, end);
	if (verdict == VERDICT_CONTINUE && more && is_only_syn(p.tcp_flags) && !(d->service->flags & SERVICE_GUARDED))
		*more = MORE_SYN;
	if (verdict == VERDICT_CONTINUE || d->stops_count)
		return NOT_FAST;
	return fast_send(ctx, &p, d, &f, verdict, more);
}

/* The frame is for us, and untagged. */
inline_always int fast_path(struct xdp_md *ctx, _Bool ipv6, volatile __u8 *more)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct decision d = {};
	__u32 fast, length, echo;

	if (data + FAST_OPTIONS(ipv6) > end || !has_fast_shape(data, ipv6, IPPROTO_TCP))
		return NOT_FAST;
	length = fast_length(data, ipv6);
	if (FAST_IP + length > end - data)
		return NOT_FAST;
	d.service = fast_service(data, ipv6, IPPROTO_TCP, more, &fast);
	if (!d.service)
		return NOT_FAST;
	echo = d.service->affinity == AFFINITY_COOKIE ? fast_echo(data, end, length, ipv6) : 0;
	if (echo)
		return fast_by_cookie(ctx, &d, data, echo, echo >> (fast & 15) & 1, length, ipv6, more);
	return fast_others(ctx, &d, data, end, length, ipv6, more);
}
