/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* later.h - packets are counted at their entries a little later, several at a time.
 *
 * With more connections than fit the cache, an entry takes longer to come from memory than all else that a packet needs. But the cookie has
 * told the server: nobody must wait for the entry. So each CPU writes down whose packets it sent, and when that is a handful, looks up their
 * entries one right after the other: then memory is asked for all of them at once, which takes no longer than for one.
 *
 * Packets that change an entry, or that a limit or the scrubber may stop, do not wait. Nor does the first packet in each tick of the
 * kernel's clock; what was written down before is counted then, or when user space asks (flush_counts). So in a quiet place all are
 * counted at once, and nowhere is more late than the last few packets before a silence. A packet whose entry turns out not to be its connection's has gone where its cookie says, as
 * ever; the connection's next packet then takes the way on which it gets an entry.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/state/connections.h"
#include "lb/state/later.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/assign.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/table.h"

/* No step of one round depends on one of another. */
static __noinline int later_flush(struct later_list *list)
{
	if (!list)
		return 0;
	for (int i = 0; i < LATER && i < list->count; i++) {
		const struct later *l = &list->at[i];
		const struct table_flow flow = { .hash = l->hash, .owner = l->owner, .client = l->client };
		struct connection *c = table_entry(l->entry);

		if (!c || !table_is_of(c, &flow)) {
			unsettle(l->hash);
			continue;
		}
		assign_confirm(c);
		c->bytes += l->length;
		c->packets++;
		if ((__s32)(list->clock - c->last) > 0) /* the flow may have moved to another CPU since */
			c->last = list->clock;
	}
	list->count = 0;
	return 0;
}

/* Writes a packet of the flow down, if the index in its cookie may be the flow's. 0: it does not wait. */
inline_always _Bool later_count(const struct packet *p, const struct service *service, const struct table_flow *f, __u16 plain)
{
	__u32 index = table_index(service, plain), first = 0, n;
	struct later_list *list;
	__u64 tick;

	if (!later_enabled || !index || service->packet_limit || service->scrubber ||
	    p->tcp_flags & (TCP_FLAG_FIN_BIT | TCP_FLAG_RST_BIT))
		return 0;
	list = bpf_map_lookup_elem(&later_lists, &first);
	if (!list || settle(f->hash))
		return 0;
	tick = bpf_jiffies64();
	if (list->tick != tick) {
		later_flush(list);
		list->tick = tick;
		list->clock = connection_clock();
		return 0;
	}
	n = list->count;
	if (n >= LATER)
		return 0;
	list->at[n].hash = f->hash;
	list->at[n].owner = f->owner;
	list->at[n].client = f->client;
	list->at[n].entry = f->base + index;
	list->at[n].length = p->length;
	list->count = n + 1;
	if (n + 1 == LATER)
		later_flush(list);
	return 1;
}

/* table_commit for the fast path, on which nothing about an entry changes but its counters. VERDICT_CONTINUE: this packet is another one. */
inline_always enum verdict table_commit_fast(const struct packet *p, const struct decision *d)
{
	struct connection *c;
	struct table_flow f;

	table_place(&f, p, d->service, d->id);
	if (later_count(p, d->service, &f, d->carried.plain))
		return FORWARDED_BY_TABLE;
	c = table_find(d->service, &f, d->carried.plain);
	if (!c || !table_is_usual(c, p))
		return VERDICT_CONTINUE;
	return table_count(c, d->service, p->length) ? FORWARDED_BY_TABLE : DROPPED_OVER_LIMIT;
}
