/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* slow.h - steering of the slow path: packets of any shape, by functions that are not inlined, for the stack and the
 * verifier. */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/parse.h"
#include "lb/state/functions.h"
#include "lb/state/predecessors.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/state/vips.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/quic.h"
#include "lb/ladder/fragments.h"
#include "lb/ladder/ladder.h"
#include "lb/ladder/predecessor.h"
#include "lb/ladder/replicas.h"
#include "lb/ladder/session.h"

/* Keys of maps lie on the stack only as long as they are used. No service has protocol 0: its key stands for the
 * address itself. */
static __noinline const __u32 *find_vip_of(const struct packet *p)
{
	if (!p->protocol)
		return 0;
	return find_vip(p->destination, p->destination_port, p->protocol, p->ipv6);
}

static __noinline const __u32 *find_vip_address(const struct packet *p)
{
	return find_vip(p->destination, 0, 0, p->ipv6);
}

/* The number of a flow's service, which may be one of network functions. 0: none. */
static __noinline __u32 service_number_of(const struct packet *flow)
{
	const __u32 *destination = find_vip_of(flow);

	if (destination)
		return *destination & ((1u << VIP_JOIN_SHIFT) - 1);
	return functions_enabled ? function_service(flow->destination, flow->ipv6) : 0;
}

/* The same verdict, unknown to the verifier: else it would walk all that follows once for each verdict. */
inline_always enum verdict hide_from_verifier(struct decision *d, enum verdict verdict)
{
	volatile __u8 *byte = &d->verdict;

	*byte = verdict;
	return *byte;
}

/* Not inlined: the hash lies on the stack only as long as it is used. */
static __noinline int note_predecessor(const struct packet *flow, const struct service *service)
{
	predecessor_seen(service->number, predecessor_hash(flow, service));
	return 0;
}

/* steer() for packets of any shape. A global function, as others that slow_path calls: it is verified once, not for
 * every path that leads here. Pointers inside memory passed to such a function are lost: they are arguments of their
 * own, and the caller sets them again. */
__noinline int steer_slow(const struct packet *p, const struct service *service, struct decision *decided)
{
	struct decision d = { .service = service };
	enum verdict verdict;

	if (!p || !service || !decided)
		return DROPPED_MALFORMED;
	d.carried = decided->carried;
	d.quoted = decided->quoted;
	d.owner_known = decided->owner_known;
	verdict = steer(p, &d);
	if (verdict == FORWARDED_TO_PREDECESSOR)
		note_predecessor(p, service);
	decided->id = d.id;
	decided->verdict = d.verdict;
	decided->carried.plain = d.carried.plain;
	__builtin_memcpy(decided->stops, d.stops, sizeof(d.stops));
	decided->stops_count = d.stops_count;
	decided->next = d.next;
	return verdict;
}

/* Of an ICMP error, by how the connection of what it quotes was found. */
inline_always enum verdict icmp_verdict(enum verdict verdict)
{
	if (verdict == FORWARDED_TO_PREDECESSOR)
		return verdict;
	return verdict == FORWARDED_BY_COOKIE || verdict == FORWARDED_BY_OLDER_KEY ||
			       verdict == FORWARDED_BY_LOCAL_TABLE || verdict == FORWARDED_BY_HISTORY ||
			       verdict == FORWARDED_BY_PORT || verdict == FORWARDED_BY_REPLICA
		       ? FORWARDED_ICMP_BY_COOKIE
		       : FORWARDED_ICMP_BY_FALLBACK;
}

/* Steer `flow`: the packet itself, or the one that an ICMP error quotes. VERDICT_CONTINUE: others have to be asked. */
inline_always enum verdict walk_flow(struct xdp_md *ctx, const struct packet *p, const struct packet *flow,
				     struct decision *d, __u32 destination)
{
	__u32 number = destination & ((1u << VIP_JOIN_SHIFT) - 1), join = destination >> VIP_JOIN_SHIFT;
	const struct service *service = service_by_number(number);
	enum verdict verdict;

	if (!service)
		return PASSED_NO_SERVICE;
	d->quoted = flow != p;
	if (join) { /* which needs no cookie, and says nothing of when a connection begins */
		d->id = join;
		verdict = FORWARDED_BY_PORT;
	} else {
		read_carried(ctx, flow, service, &d->carried);
		if (flow->protocol == IPPROTO_UDP && service->affinity == AFFINITY_QUIC)
			quic_read(ctx, service, flow->l4 + sizeof(struct udphdr), flow != p, &d->carried);
		if (flow != p)
			d->carried.echo = d->carried.timestamp; /* the server wrote what it quotes */
		verdict = steer_slow(flow, service, d);
		if (verdict == VERDICT_CONTINUE)
			verdict = begins_connections(service) ? steer_by_session(flow, service, d)
							      : steer_by_replicas(flow, service, d);
	}
	d->service = service;
	if (verdict == VERDICT_CONTINUE)
		return verdict;
	d->server = target_by_id(service, d->id);
	if (!d->server)
		return is_guarded(verdict) ? verdict : DROPPED_NO_SERVER;
	if (flow != p)
		return icmp_verdict(verdict);
	if (p->fragment == FRAGMENT_FIRST)
		fragment_learn(p, number, d->id);
	if (verdict == FORWARDED_BY_COOKIE && d->service->affinity == AFFINITY_TABLE)
		return steer_by_table(p, d);
	return verdict;
}
