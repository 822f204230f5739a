/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fast_find.h - the ladder for packets of the fast path's shape, but for established connections whose cookie is where
 * all stacks put it: those need less. */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/cookie.h"
#include "wire/parse.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/cookie.h"
#include "lb/affinity/decision.h"
#include "lb/ladder/dispatched.h"
#include "lb/ladder/ladder.h"
#include "lb/ladder/placed.h"
#include "lb/walk/fast_shape.h"

/* TSecr of a segment with a timestamp and perhaps more, as SACK, behind it; 0: it has none, or is a SYN. */
inline_always __u32 fast_first_echo(const struct packet *p, const struct tcphdr *tcp, const void *end)
{
	const __be32 *options = (const void *)(tcp + 1);

	if (is_syn(p) || tcp->doff < 8 || (const void *)(options + 3) > end || options[0] != bpf_htonl(0x0101080a))
		return 0;
	return bpf_ntohl(options[2]);
}

/* A new connection that has no candidates, by the policy. 0: it is not for here. */
inline_always _Bool fast_by_policy(const struct packet *p, struct decision *d, struct finding *f)
{
	_Bool placed = dispatched_by_placement(d->service);

	if (placed || (f->again && d->service->flags & SERVICE_THROUGH))
		steer_by_slot(p, d);
	if (f->again && d->server && d->server->flags & SERVER_NO_COOKIE)
		return 0;
	if (!placed)
		steer_by_dispatch(d, f);
	return 1;
}

/* A new connection. Candidates are stops, lb_session begins those whose SYNs are answered, and not everybody may begin
 * one. */
inline_always enum verdict fast_dispatch(const struct packet *p, struct decision *d, struct finding *f)
{
	if (d->service->columns > 1 || d->service->flags & SERVICE_GUARDED || answers_syns(d->service))
		return VERDICT_CONTINUE;
	return fast_by_policy(p, d, f) ? FORWARDED_NEW : VERDICT_CONTINUE;
}

/* Of a service with cookies, all that fast_by_cookie has not taken. */
inline_always enum verdict fast_by_timestamp(const struct packet *p, struct decision *d, struct finding *f,
					     const struct tcphdr *tcp, const void *end)
{
	const struct service *service = d->service;
	__u32 echo;

	if (is_fast_syn(tcp, end, p->tcp_flags))
		return fast_dispatch(p, d, f);
	if (has_no_timestamp(tcp, end)) {
		if (p->tcp_flags & TCP_FLAG_RST_BIT ||
		    service->flags & (SERVICE_SESSION | SERVICE_REPLICATED | SERVICE_GUARDED) ||
		    (is_syn(p) && service->syn_proxy))
			return VERDICT_CONTINUE;
		steer_by_slot(p, d);
		return FORWARDED_NO_TIMESTAMP;
	}
	echo = fast_first_echo(p, tcp, end);
	if (!echo)
		return VERDICT_CONTINUE;
	steer_to(d, cookie_find(p, service, echo, cookie_epoch_parity(echo, service->cookie_bits), &d->carried.plain));
	return service->affinity == AFFINITY_TABLE ? FORWARDED_BY_TABLE : FORWARDED_BY_COOKIE;
}

inline_always enum verdict fast_by_local_table(const struct packet *p, struct decision *d, struct finding *f)
{
	enum verdict verdict = steer_by_local_table(p, d, f);

	if (d->server)
		return verdict;
	if (verdict == FORWARDED_NEW || d->service->columns > 1)
		return fast_dispatch(p, d, f);
	steer_by_slot(p, d);
	return verdict;
}

/* VERDICT_CONTINUE: it is not for here. */
inline_always enum verdict fast_find(const struct packet *p, struct decision *d, struct finding *f,
				     const struct tcphdr *tcp, const void *end)
{
	__u32 echo;

	switch (d->service->affinity) {
	case AFFINITY_HASH:
		steer_by_slot(p, d);
		return FORWARDED_BY_HASH;
	case AFFINITY_HISTORY:
		echo = fast_first_echo(p, tcp, end);
		return echo && steer_to_column(p, d, echo) ? FORWARDED_BY_HISTORY : VERDICT_CONTINUE;
	case AFFINITY_LOCAL_TABLE:
		return fast_by_local_table(p, d, f);
	default:
		return fast_by_timestamp(p, d, f, tcp, end);
	}
}
