/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ladder.h - the order in which the server of a packet is found. The only file that decides it.
 *
 *   1. new connection            -> dispatch
 *   2. carries a valid cookie    -> its server (affinity table: a suspect's packets visit the scrubber first)
 *   3. known to be closing, or in the local table -> its server
 *      predecessor, and not ours -> the predecessor (lb/ladder/predecessor.h)
 *   4. services with replicas    -> whose it is by their entries (lb/ladder/replicas.h)
 *      session tls or syn_proxy, server not known to answer yet -> lb/ladder/session.h; a SYN is answered
 *   5. otherwise                 -> placement, with the previous owners as further stops
 *
 * steer_find decides and changes nothing but a service's turn (lb/dispatch/turns.h), steer_commit changes and decides
 * nothing: a packet that the fast path gives up is steered again.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/cookie.h"
#include "wire/parse.h"
#include "lb/state/loads.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/assign.h"
#include "lb/affinity/closing.h"
#include "lb/affinity/cookie.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/deferred.h"
#include "lb/affinity/local_table.h"
#include "lb/affinity/quic.h"
#include "lb/ladder/dispatched.h"
#include "lb/ladder/guarded.h"
#include "lb/ladder/placed.h"
#include "lb/ladder/predecessor.h"
#include "lb/ladder/replicas.h"

/* Rungs 1 to 3 of a service whose connections carry cookies. Sets d->server where one of them knows; says why else
 * placement must. */
inline_always enum verdict steer_by_carried(const struct packet *p, struct decision *d)
{
	if (d->carried.malformed)
		return FORWARDED_BAD_OPTIONS;
	if (!d->carried.at) {
		if (!(p->tcp_flags & TCP_FLAG_RST_BIT))
			return FORWARDED_NO_TIMESTAMP;
		steer_to(d, closing_find(p, d->service));
		return d->server ? FORWARDED_BY_CLOSING : FORWARDED_RESET;
	}
	if (is_syn(p))
		return FORWARDED_NEW;
	if (!d->carried.echo)
		return FORWARDED_NO_ECHO;
	steer_to(d, cookie_find(p, d->service, d->carried.echo,
				cookie_epoch_parity(d->carried.echo, d->service->cookie_bits), &d->carried.plain));
	if (d->server)
		return FORWARDED_BY_COOKIE;
	return d->service->flags & SERVICE_FIRST_TIER && d->carried.plain && !d->id ? FORWARDED_NO_NODE
										    : FORWARDED_BAD_COOKIE;
}

/* The same where the timestamp names a column of the flow's slot. */
inline_always enum verdict steer_by_history(const struct packet *p, struct decision *d)
{
	if (d->carried.malformed)
		return FORWARDED_BAD_OPTIONS;
	if (!d->carried.at)
		return p->tcp_flags & TCP_FLAG_RST_BIT ? FORWARDED_RESET : FORWARDED_NO_TIMESTAMP;
	if (is_syn(p))
		return FORWARDED_NEW;
	if (!d->carried.echo)
		return FORWARDED_NO_ECHO;
	return steer_to_column(p, d, d->carried.echo) ? FORWARDED_BY_HISTORY : FORWARDED_BAD_COOKIE;
}

/* The same where servers issue connection ids that name them. A long header with an id that nobody knows is from a
 * client who has not heard of the server. */
inline_always enum verdict steer_by_connection_id(const struct packet *p, struct decision *d)
{
	steer_to(d, d->carried.plain);
	if (d->server)
		return d->carried.older ? FORWARDED_BY_OLDER_KEY : FORWARDED_BY_COOKIE;
	if (!d->carried.drawn)
		return FORWARDED_BAD_COOKIE;
	steer_to(d, starting_find(starting_hash(p, d->service, d->carried.drawn)));
	return d->server ? FORWARDED_STARTING : FORWARDED_NEW;
}

inline_always enum verdict steer_by_local_table(const struct packet *p, struct decision *d, struct finding *f)
{
	f->entry = local_table_find(p, d->service);
	steer_to(d, f->entry ? f->entry->id : NO_ID);
	if (d->server)
		return FORWARDED_BY_LOCAL_TABLE;
	return d->quoted || (p->protocol == IPPROTO_TCP && !is_syn(p)) ? FORWARDED_UNKNOWN : FORWARDED_NEW;
}

/* Where the packet goes, and why. steer_commit changes what depends on it, once it is known that the packet goes there.
 * VERDICT_CONTINUE, and no server: replicas tell, and if they do not, it goes by placement because of d->verdict. */
inline_always enum verdict steer_find(const struct packet *p, struct decision *d, struct finding *f)
{
	const struct service *service = d->service;
	enum verdict verdict = FORWARDED_BY_HASH;

	if (service->affinity == AFFINITY_LOCAL_TABLE) {
		verdict = steer_by_local_table(p, d, f);
		if (service->predecessors && begins_again(p, d, f->entry)) {
			f->entry = 0;
			d->server = 0;
			verdict = FORWARDED_NEW;
		}
	} else if (service->affinity == AFFINITY_HISTORY)
		verdict = steer_by_history(p, d);
	else if (service->affinity == AFFINITY_QUIC)
		verdict = steer_by_connection_id(p, d);
	else if (service->affinity != AFFINITY_HASH && service->affinity != AFFINITY_REPLICATED)
		verdict = steer_by_carried(p, d);
	if (d->server)
		return verdict;
	if (service->predecessors) {
		d->id = succeed(p, service, verdict, f->entry ? f->entry->id : NO_ID);
		d->server = predecessor_by_id(service, d->id);
		if (d->server)
			return FORWARDED_TO_PREDECESSOR;
	}
	if (begins_here(p, d, verdict)) {
		d->verdict = verdict;
		return VERDICT_CONTINUE;
	}
	if (asks_replicas(service, verdict)) {
		d->verdict = service->affinity == AFFINITY_REPLICATED ? FORWARDED_UNKNOWN : verdict;
		return VERDICT_CONTINUE;
	}
	if (verdict != FORWARDED_NEW || dispatched_by_placement(service) || service->flags & SERVICE_THROUGH)
		steer_by_placement(p, d);
	if (verdict == FORWARDED_NEW) {
		/* A server that cannot take part keeps its share, but only placement finds its connections again. */
		if (d->server && d->server->flags & SERVER_NO_COOKIE)
			return FORWARDED_STRIPPED;
		if (!dispatched_by_placement(service))
			steer_by_dispatch(d, f);
	}
	return d->server ? verdict : DROPPED_NO_SERVER;
}

inline_always void dispatch_commit(const struct decision *d)
{
	load_begin(d->service, d->id, d->server);
}

/* 0: the local table has no room, and nothing has changed. */
inline_always _Bool steer_commit_new(const struct packet *p, const struct decision *d)
{
	const struct service *service = d->service;

	if (service->affinity == AFFINITY_LOCAL_TABLE && !local_table_add(p, service, d->id))
		return 0;
	if (service->affinity == AFFINITY_QUIC)
		starting_commit(starting_hash(p, service, d->carried.drawn), d->id);
	dispatch_commit(d);
	return 1;
}

/* What a packet that goes where steer_find said changes, for itself and for later ones; of a connection table
 * steer_by_table does it. 0: see steer_commit_new. */
inline_always _Bool steer_commit(const struct packet *p, const struct decision *d, const struct finding *f,
				 enum verdict verdict)
{
	if (verdict == FORWARDED_NEW)
		return steer_commit_new(p, d);
	if (verdict == FORWARDED_TO_PREDECESSOR)
		succeed_commit(p, d, f->entry);
	if (verdict == FORWARDED_BY_LOCAL_TABLE && f->entry)
		local_table_commit(p, d->service, f->entry);
	if (verdict == FORWARDED_BY_LOCAL_TABLE ||
	    (verdict == FORWARDED_BY_COOKIE && d->service->affinity != AFFINITY_TABLE))
		closing_commit(p, d);
	return 1;
}

inline_always enum verdict steer(const struct packet *p, struct decision *d)
{
	struct finding f = { .again = 1 };
	enum verdict verdict = steer_find(p, d, &f);

	if (d->service->flags & SERVICE_GUARDED)
		verdict = guard(p, d, verdict);
	if (!d->server || d->quoted || steer_commit(p, d, &f, verdict))
		return verdict;
	d->server = 0;
	steer_by_placement(p, d); /* as its later packets will be */
	return d->server ? FORWARDED_TABLE_FULL : DROPPED_NO_SERVER;
}

/* Affinity table, with a server known by cookie. */
static __noinline enum verdict steer_by_table(const struct packet *p, struct decision *d)
{
	const struct server *scrubber = 0;
	enum verdict verdict = table_commit(p, d, &scrubber);

	if (!scrubber)
		return verdict;
	d->stops[0] = d->id;
	d->stops_count = 1;
	d->id = d->service->scrubber;
	d->server = scrubber;
	return FORWARDED_BY_SCRUBBER;
}
