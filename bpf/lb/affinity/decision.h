/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* decision.h - where a packet goes, and why: the ladder fills it, and all that follows reads it. */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/gue.h"
#include "wire/parse.h"
#include "lb/carrier/carried.h"
#include "lb/state/counters.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"

struct decision {
	const struct service *service;
	const struct server *server;
	__u16 id;
	__u16 stops[STOPS_MAX]; /* ids of the servers that the packet goes on to; NO_ID fills a gap */
	__u8 stops_count;
	__u8 next; /* index of the stop after the server */
	__u8 verdict; /* enum verdict: why this server */
	_Bool owner_known : 1; /* the packet is inside a message that names its server */
	_Bool quoted : 1; /* the flow is that of a packet that an ICMP error quotes: nothing is learned from it */
	struct carried carried;
};

inline_always _Bool is_syn(const struct packet *p)
{
	return (p->tcp_flags & (TCP_FLAG_SYN_BIT | TCP_FLAG_ACK_BIT)) == TCP_FLAG_SYN_BIT;
}

/* Is it the first of a connection that begins at this node, or of one that may not have heard of its server? syn_proxy:
 * what was answered before it was switched off goes on. */
inline_always _Bool begins_here(const struct packet *p, const struct decision *d, enum verdict why)
{
	if (!begins_connections(d->service) || d->quoted)
		return 0;
	if (why == FORWARDED_BAD_COOKIE)
		return !d->carried.plain;
	if (is_syn(p) && !answers_syns(d->service))
		return 0;
	/* Options that we cannot read hosts may: to them they are none. */
	return why == FORWARDED_NEW || why == FORWARDED_NO_TIMESTAMP || why == FORWARDED_BAD_OPTIONS ||
	       (why == FORWARDED_NO_ECHO && d->service->flags & SERVICE_SESSION);
}

/* Do timestamps tell where its connections are? */
inline_always _Bool goes_by_timestamps(const struct service *service)
{
	return service->affinity == AFFINITY_COOKIE || service->affinity == AFFINITY_TABLE ||
	       service->affinity == AFFINITY_HISTORY;
}

/* What a segment carries for us. Once per packet: searches are counted. */
inline_always void read_carried(struct xdp_md *ctx, const struct packet *p, const struct service *service,
				struct carried *carried)
{
	if (p->protocol != IPPROTO_TCP || !goes_by_timestamps(service))
		return;
	read_timestamp(ctx, p, carried);
	if (carried->searched)
		count_timestamp_search(service->number);
}
