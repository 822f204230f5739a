/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* guarded.h - services whose connections not everybody may begin, or not at any rate: allow, source_limit. */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/parse.h"
#include "lb/state/allowed.h"
#include "lb/state/service.h"
#include "lb/state/source_limits.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"

/* Is the packet of a connection that this or another load balancer let begin? Anybody can show a connection id in a
 * long header, and a SYN of ports that are known begins another connection. */
inline_always _Bool has_begun(const struct packet *p, const struct decision *d, enum verdict verdict)
{
	if (verdict == FORWARDED_BY_COOKIE || verdict == FORWARDED_BY_OLDER_KEY)
		return d->service->affinity != AFFINITY_QUIC || !d->carried.is_long;
	if (verdict == FORWARDED_BY_LOCAL_TABLE)
		return p->protocol != IPPROTO_TCP || !is_syn(p);
	if (verdict == FORWARDED_TO_PREDECESSOR)
		return p->protocol == IPPROTO_TCP && !is_syn(p);
	return verdict == FORWARDED_BY_CLOSING || verdict == FORWARDED_STARTING;
}

/* Is it the first packet of a connection, and not yet counted? Where one of us answers SYNs, a source counts once it
 * has proved to be there (lb/walk/session.h). What another load balancer has sent on, it has counted. */
inline_always _Bool is_first(const struct packet *p, const struct decision *d, enum verdict verdict)
{
	if (d->quoted || d->owner_known)
		return 0;
	return p->protocol == IPPROTO_TCP ? is_syn(p) && !answers_syns(d->service) : verdict == FORWARDED_NEW;
}

inline_always _Bool is_guarded(enum verdict verdict)
{
	return verdict == DROPPED_NOT_ALLOWED || verdict == DROPPED_SOURCE_LIMIT;
}

inline_always enum verdict guard(const struct packet *p, struct decision *d, enum verdict verdict)
{
	const struct service *service = d->service;

	if (has_begun(p, d, verdict))
		return verdict;
	if (service->allow && !is_allowed(p, service))
		verdict = DROPPED_NOT_ALLOWED;
	else if (is_first(p, d, verdict) && is_over_source_limit(p, service))
		verdict = DROPPED_SOURCE_LIMIT;
	if (is_guarded(verdict)) {
		d->server = 0;
		d->id = NO_ID;
	}
	return verdict;
}
