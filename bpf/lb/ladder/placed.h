/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* placed.h - the ladder's rungs that go by the table: to a slot's owner, to all who may have had it, or to the
 * candidates for a new connection. */
#pragma once

#include "wire/kernel.h"
#include "wire/gue.h"
#include "wire/history.h"
#include "wire/parse.h"
#include "lb/state/service.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/placement.h"

inline_always void steer_to(struct decision *d, __u16 id)
{
	d->id = id;
	d->server = server_by_id(d->service, id);
}

/* To the owner of a slot's columns that has the connection: those before are asked, too. */
inline_always void steer_to_older(struct decision *d, __u32 cell, __u32 columns, _Bool by_rows)
{
	const struct column *column = column_at(cell);
	struct owner_list list = {};

	if (columns == 1 && column && has_no_past(column)) {
		steer_to(d, column->owners[0]);
		return;
	}
	d->stops_count = earlier_owners(cell, columns, by_rows, &list) - 1;
	if (d->stops_count > STOPS_MAX) /* there is none at all */
		d->stops_count = 0;
	__builtin_memcpy(d->stops, &list.id[1], sizeof(d->stops));
	steer_to(d, list.id[0]);
}

/* To the owner of the column that an echo names, and those before. 0: it names none. */
inline_always _Bool steer_to_column(const struct packet *p, struct decision *d, __u32 echo)
{
	const struct service *service = d->service;
	__u32 column = history_column(echo);

	if (column >= service->columns || !service->slots_count)
		return 0;
	steer_to_older(d, placement_cell(service, p->source, p->source_port, p->destination_port, p->ipv6) + column, 1,
		       0);
	return 1;
}

/* A new connection is offered to the owners of all columns, from the first on that there is a way to (SHELL III-A).
 * Each keeps its place. */
inline_always void find_candidates(struct decision *d, __u32 cell)
{
	const struct service *service = d->service;

	for (__u32 i = 0; i < CANDIDATES_MAX && i < service->columns; i++) {
		const struct column *column = column_at(cell + i);
		__u16 id = column ? column->owners[0] : NO_ID;
		const struct server *server = server_by_id(service, id);

		if (!server)
			continue;
		if (i) {
			d->stops[i - 1] = id;
			d->stops_count = i;
		}
		if (d->server || !(server->flags & SERVER_NEXT_HOP))
			continue;
		d->server = server;
		d->id = id;
		d->next = i;
	}
}

/* Not inlined, for the stack. */
static __noinline int steer_to_candidates(struct decision *d, __u32 cell)
{
	find_candidates(d, cell);
	return 0;
}

/* To the owner of the flow's slot, or with second chance to all who may have its connection. */
inline_always void steer_by_slot(const struct packet *p, struct decision *d)
{
	const struct service *service = d->service;
	__u32 cell = placement_cell(service, p->source, p->source_port, p->destination_port, p->ipv6);
	_Bool timestamps = d->carried.at || d->carried.malformed || p->tcp_flags & TCP_FLAG_RST_BIT;
	const struct column *column;

	if (!service->slots_count)
		return;
	if (p->protocol == IPPROTO_TCP && !is_syn(p) && service->flags & SERVICE_SECOND_CHANCE)
		steer_to_older(d, cell, service->columns, timestamps);
	if (d->server)
		return;
	column = column_at(cell);
	steer_to(d, column ? column->owners[0] : NO_ID);
}

/* The same, but a new connection has candidates if its timestamp can name one. */
inline_always void steer_by_placement(const struct packet *p, struct decision *d)
{
	const struct service *service = d->service;

	if (p->protocol == IPPROTO_TCP && is_syn(p) && service->columns > 1 && d->carried.at && service->slots_count)
		steer_to_candidates(d,
				    placement_cell(service, p->source, p->source_port, p->destination_port, p->ipv6));
	if (!d->server)
		steer_by_slot(p, d);
}
