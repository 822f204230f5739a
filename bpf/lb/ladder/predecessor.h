/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* predecessor.h - a VIP moves in, or out: what did not begin here goes on to who had, or will have, the VIP.
 *
 * Where a cookie is no proof (a foreign timestamp may look like one) or there is none, the server's agent sees whether
 * it has the connection, and hands on what it does not have (server/accept/succeed.h). So that a SYN that is sent again
 * does not change sides while share changes, one without timestamps begins here only when all do. Where a table
 * remembers connections, it remembers their side.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/parse.h"
#include "lb/state/connections.h"
#include "lb/state/local_table.h"
#include "lb/state/predecessors.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/local_table.h"
#include "lb/affinity/placement.h"

#define SHARE_ALL 1000
#define FLOW_SILENCE ((__s32)(120 * 1000000000ULL >> 20)) /* RFC 4787 4.3: no NAT forgets one earlier */

inline_always __u64 predecessor_hash(const struct packet *p, const struct service *service)
{
	return placement_hash(service, p->source, p->source_port, p->destination_port, p->ipv6);
}

/* One of several, by bits that say neither the slot nor the share. */
inline_always __u16 predecessor_of(const struct service *service, __u64 hash)
{
	return PREDECESSOR_ID + (((hash >> 32 & 0xffff) * service->predecessors) >> 16);
}

/* Does the share leave a new connection of that hash to the predecessor? */
inline_always _Bool is_left(const struct service *service, __u64 hash)
{
	return (hash & 0xffffffff) * SHARE_ALL >> 32 >= service->share;
}

/* Is the packet not ours, for the reason that the ladder gave why nobody is known to have its connection? */
inline_always _Bool is_not_ours(const struct packet *p, const struct service *service, enum verdict why, __u64 hash)
{
	switch (why) {
	case FORWARDED_BAD_COOKIE:
	case FORWARDED_UNKNOWN:
		return 1;
	case FORWARDED_NEW:
		return is_left(service, hash);
	default:
		return p->protocol == IPPROTO_TCP && is_syn(p) && service->share < SHARE_ALL;
	}
}

/* Does a client use the port of a connection again that the table still knows? A SYN alone, which anybody forges, moves
 * none. Flows of UDP that are to change sides end by silence: else ports that are used for ever again never would. */
inline_always _Bool begins_again(const struct packet *p, const struct decision *d, const struct local_connection *known)
{
	if (!known || d->quoted)
		return 0;
	if (p->protocol == IPPROTO_TCP)
		return known->id & LOCAL_ENDED && is_syn(p);
	if ((__s32)(connection_clock() - known->last) <= FLOW_SILENCE) /* another CPU's clock may be ahead */
		return 0;
	return (known->id >= PREDECESSOR_ID) != is_left(d->service, predecessor_hash(p, d->service));
}

/* NO_ID: it is for a server. known: whom a table has for the flow, or NO_ID. A global function: see steer_slow. */
__noinline int succeed(const struct packet *p, const struct service *service, __u32 why, __u32 known)
{
	__u64 hash;

	if (!p || !service)
		return NO_ID;
	if (known >= PREDECESSOR_ID && predecessor_by_id(service, known))
		return known;
	hash = predecessor_hash(p, service);
	return is_not_ours(p, service, why, hash) ? predecessor_of(service, hash) : NO_ID;
}

/* What goes there, a table remembers: that and when. A segment that begins nothing is not ours anyway. */
inline_always void succeed_commit(const struct packet *p, const struct decision *d, struct local_connection *known)
{
	if (d->service->affinity != AFFINITY_LOCAL_TABLE)
		return;
	if (known && (__u16)known->id == d->id)
		local_table_commit(p, d->service, known);
	else if (p->protocol != IPPROTO_TCP || is_syn(p))
		local_table_add(p, d->service, d->id);
}
