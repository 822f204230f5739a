/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* deferred.h - packets are counted at their entries a little later, several at a time.
 *
 * With more connections than fit the cache, reading an entry from memory takes longer than all else that a packet
 * needs. But the cookie names the server, so no packet has to wait for its entry. Each CPU lists the packets that it
 * sent, and when the list is full, looks up their entries one right after the other: memory then loads all of them at
 * once, which takes no longer than one.
 *
 * Packets that change an entry, or that a limit or the scrubber may stop, are not deferred. Nor is the first packet in
 * each tick of the kernel's clock; the list is counted then, or when user space asks (flush_counts). So a quiet node
 * counts all packets at once, and only the last few packets before a silence are late elsewhere. A packet whose entry
 * is not its connection's has gone where its cookie says, as ever; the connection's next packet then takes the path on
 * which it gets an entry.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/state/connections.h"
#include "lb/state/deferred.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/assign.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/table.h"

/* The iterations are independent of each other. A global function: verified once. */
__noinline int deferred_flush(struct deferred_list *list)
{
	if (!list)
		return 0;
	for (int i = 0; i < DEFERRED_MAX && i < list->count; i++) {
		const struct deferred *l = &list->at[i];
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

/* All that this CPU has not counted yet. */
inline_always void deferred_flush_all(void)
{
	__u32 first = 0;

	deferred_flush(bpf_map_lookup_elem(&deferred_lists, &first));
}

/* Defers a packet of the flow, if the index in its cookie may be the flow's. 0: it is not deferred. */
inline_always _Bool deferred_count(const struct packet *p, const struct service *service, const struct table_flow *f,
				   __u16 plain)
{
	__u32 index = table_index(service, plain), first = 0, n;
	struct deferred_list *list;
	__u64 tick;

	if (!deferred_enabled || !index || service->packet_limit || service->scrubber ||
	    p->tcp_flags & (TCP_FLAG_FIN_BIT | TCP_FLAG_RST_BIT))
		return 0;
	list = bpf_map_lookup_elem(&deferred_lists, &first);
	if (!list || settle(f->hash))
		return 0;
	tick = bpf_jiffies64();
	if (list->tick != tick) {
		deferred_flush(list);
		list->tick = tick;
		list->clock = connection_clock();
		return 0;
	}
	n = list->count;
	if (n >= DEFERRED_MAX)
		return 0;
	list->at[n].hash = f->hash;
	list->at[n].owner = f->owner;
	list->at[n].client = f->client;
	list->at[n].entry = f->base + index;
	list->at[n].length = p->length;
	list->count = n + 1;
	if (n + 1 == DEFERRED_MAX)
		deferred_flush(list);
	return 1;
}

/* table_commit for the fast path, on which nothing about an entry changes but its counters. VERDICT_CONTINUE: this
 * packet is another one. */
inline_always enum verdict table_commit_fast(const struct packet *p, const struct decision *d)
{
	struct connection *c;
	struct table_flow f;

	table_flow_of(&f, p, d->service, d->id);
	if (deferred_count(p, d->service, &f, d->carried.plain))
		return FORWARDED_BY_TABLE;
	c = table_find(d->service, &f, d->carried.plain);
	if (!c || !table_is_fast(c, p))
		return VERDICT_CONTINUE;
	return table_count(c, d->service, p->length) ? FORWARDED_BY_TABLE : DROPPED_OVER_LIMIT;
}
