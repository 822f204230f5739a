/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* assign.h - what a packet with a valid cookie means for the table: the steps of table.h, in order. */
#pragma once

#include "wire/kernel.h"
#include "wire/mix.h"
#include "wire/parse.h"
#include "lb/state/connections.h"
#include "lb/state/deferred.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/closing.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/table.h"

/* The entry that this node gave the flow, and of which its server does not know yet. One that has ended was that of an
 * earlier connection of the same ports. */
inline_always struct connection *assigned(const struct service *service, const struct table_flow *f, __u64 assignment,
					  __u32 *entry)
{
	struct connection *c;

	*entry = assignment;
	if (assignment >> 32 != (__u32)mix64(f->hash) || *entry - f->base >= 1u << (service->index_bits & 7))
		return 0;
	c = table_entry(*entry);
	return c && table_is_of(c, f) && connection_state(c->owner) < CONNECTION_FINISHED ? c : 0;
}

/* Is the slot held by another flow, whose server has only just received its index? */
inline_always _Bool assignment_is_busy(__u64 assignment)
{
	struct connection *c = table_entry(assignment);

	return assignment && c && connection_state(c->owner) == CONNECTION_NEW &&
	       connection_clock() - c->last < ASSIGNMENT_TIME;
}

/* The cookie that d->carried.echo carries becomes the one that names entry. */
inline_always void assign_tag(struct decision *d, const struct table_flow *f, __u32 entry)
{
	const struct service *service = d->service;
	__u16 plain = ((__u32)service->node << (service->index_bits & 7) | (entry - f->base))
			      << (service->id_bits & 15) |
		      d->id;

	d->carried.echo ^= d->carried.plain ^ plain;
	d->carried.plain = plain;
	d->carried.changed = 1;
}

/* The first packet with the index confirms it, and does not wait. Not inlined: the stack has no room for it. */
static __noinline int assign_unsettled(__u64 hash)
{
	unsettle(hash);
	return 0;
}

/* An entry for a connection whose cookie names none of this node's. *verdict says what became of it; 0: it goes
 * without. */
inline_always struct connection *assign(const struct packet *p, struct decision *d, const struct table_flow *f,
					__u32 *entry, enum verdict *verdict)
{
	__u32 slot = f->hash >> 16 & (ASSIGNMENTS - 1);
	__u64 *assignment = bpf_map_lookup_elem(&assignments, &slot);
	struct connection *c;

	if (!assignment)
		return 0;
	c = assigned(d->service, f, *assignment, entry);
	if (!c) {
		if (p->tcp_flags & (TCP_FLAG_FIN_BIT | TCP_FLAG_RST_BIT) || assignment_is_busy(*assignment))
			return 0;
		c = table_add(p, d->service, f, entry);
		*verdict = c ? FORWARDED_ADDED : FORWARDED_TABLE_FULL;
		if (!c)
			return 0;
		*assignment = (__u64)(__u32)mix64(f->hash) << 32 | *entry;
		assign_unsettled(f->hash);
	}
	assign_tag(d, f, *entry);
	return c;
}

/* The server uses the index. */
inline_always void assign_confirm(struct connection *c)
{
	union connection_owner owner = { .word = *(volatile __u64 *)&c->owner.word };

	if (connection_state(owner) == CONNECTION_NEW)
		__sync_val_compare_and_swap(&c->owner.word, owner.word,
					    owner.word ^ (__u64)(CONNECTION_NEW ^ CONNECTION_OPEN) << 48);
}

/* A suspect's packets visit the scrubber; the server is the next stop. Without a path to the scrubber, or from it on,
 * they go to the server directly: 0. */
inline_always const struct server *assign_scrubber(const struct decision *d, const struct connection *c)
{
	const struct server *scrubber;

	if (!(c->owner.word >> 52 & CONNECTION_SUSPECT) || d->id == d->service->scrubber)
		return 0;
	scrubber = server_by_id(d->service, d->service->scrubber);
	if (!scrubber || !(scrubber->flags & SERVER_NEXT_HOP) || (scrubber->flags ^ d->server->flags) & SERVER_IPV6)
		return 0;
	return scrubber;
}

/* *scrubber: where the packet goes first. */
inline_always enum verdict table_commit(const struct packet *p, struct decision *d, const struct server **scrubber)
{
	enum verdict verdict = FORWARDED_BY_COOKIE;
	const struct service *service = d->service;
	struct table_flow f;
	struct connection *c;
	__u32 entry;

	table_flow_of(&f, p, service, d->id);
	c = table_find(service, &f, d->carried.plain);
	entry = f.base + (d->carried.plain >> (service->id_bits & 15) & ((1u << (service->index_bits & 7)) - 1));
	if (c)
		assign_confirm(c);
	else
		c = assign(p, d, &f, &entry, &verdict);
	if (c && !table_count(c, service, p->length))
		return DROPPED_OVER_LIMIT; /* the server will not know of it: neither shall we */
	closing_commit(p, d);
	if (!c)
		return verdict;
	if (verdict != FORWARDED_ADDED)
		verdict = FORWARDED_BY_TABLE;
	if (p->tcp_flags & (TCP_FLAG_FIN_BIT | TCP_FLAG_RST_BIT))
		table_end(c, entry, &f, p->tcp_flags);
	*scrubber = assign_scrubber(d, c);
	return verdict;
}
