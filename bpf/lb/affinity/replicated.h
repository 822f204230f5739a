/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* replicated.h - Anolis 4.3.1: whose a connection is, as chains of load balancers know it. internal/machine/replica is
 * the same in Go: what is done here to messages and entries is held against it
 * (internal/daemon/lb/replication/machine_test.go). */
#pragma once

#include "wire/kernel.h"
#include "lb/packet/peer_message.h"
#include "lb/state/replicas.h"
#include "lb/state/ring.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/replica_table.h"

/* One question on its way: a message that came, or a packet from outside. */
struct replica_step {
	__u64 key;
	__u32 service; /* number of the flow's service */
	__u32 chain; /* as in the message */
	__u16 forwarder, last, owner, proposed;
	__u16 to; /* REPLICA_SEND: whom */
	__u8 kind, flags, hops; /* enum peer_kind, enum peer_flag */
	__u8 verdict; /* REPLICA_DROP: why */
};

/* What this node knows of a connection. */
struct replica_known {
	__u16 owner; /* 0: nothing */
	_Bool fresh; /* seen in this period: nobody must be asked */
	_Bool cached; /* it is an answer */
};

/* Servers that get no packets any more own nothing. */
inline_always _Bool replica_is_gone(__u32 number, __u64 word)
{
	const struct service *service = service_by_number(number);

	return !service || !server_by_id(service, word & 0xffff);
}

/* Answers unlike what was known. Never, as long as every chain keeps a node that was in it
 * (docs/design/failure-model.md). */
__u64 replica_conflicts;

/* Counts that an answer is unlike what is known. 1: that holds in this period, and stays: the message may be an old
 * one, sent again by somebody. */
inline_always _Bool replica_conflict(__u32 service, __u64 word, __u32 period)
{
	if (replica_is_gone(service, word))
		return 0;
	__sync_fetch_and_add(&replica_conflicts, 1);
	return replica_is_of_period(word, period);
}

/* The entry or answer that may be answered from. */
__noinline int replica_usable(__u64 key, __u32 service, struct replica_known *known)
{
	const struct replica_current *now = replicas_now();
	const struct replica_entry *e;
	__u64 cached, word;

	if (!known || !now)
		return 0;
	e = replica_find(&replica_answers, key);
	cached = e ? *(const volatile __u64 *)&e->word : 0;
	if (cached && replica_is_gone(service, cached))
		cached = 0;
	known->cached = cached != 0;
	known->owner = cached;
	known->fresh = cached && replica_is_of_period(cached, now->period);
	if (known->fresh || !now->view)
		return 0;
	e = replica_find(&replica_entries, key);
	word = e ? *(const volatile __u64 *)&e->word : 0;
	if (!word || !(replica_flags(word) & REPLICA_CACHEABLE) || replica_is_gone(service, word))
		return 0;
	known->cached = 0;
	known->owner = word;
	known->fresh = replica_is_of_period(word, now->period);
	return 0;
}

/* Changes an entry: its owner is gone and gets another one, it is used now, and it may be answered from. Returns whose
 * it is then; 0: it was removed. */
inline_always __u16 replica_renew(struct replica_entry *e, const struct replica_step *s, __u32 period, __u8 flags)
{
	for (int i = 0; i < REPLICA_TRIES; i++) {
		__u64 before = *(volatile __u64 *)&e->word;
		__u16 owner = before, number = before >> 16;

		if (!before)
			return 0;
		if (replica_is_gone(s->service, before))
			owner = s->owner;
		if (!number)
			number = s->service;
		if (__sync_val_compare_and_swap(&e->word, before,
						replica_word(owner, number, period, replica_flags(before) | flags)) ==
		    before)
			return owner;
	}
	return 0;
}

/* Makes an entry, or renews the one that there is. 0: s->owner is whose it is; else why not. */
__noinline int replica_keep(struct replica_step *s, __u32 cacheable)
{
	const struct replica_current *now = replicas_now();
	__u8 flags = cacheable ? REPLICA_CACHEABLE : 0;
	struct replica_entry *e;
	__u64 word;
	__u16 owner;

	if (!s || !now)
		return DROPPED_MALFORMED;
	e = replica_find(&replica_entries, s->key);
	if (!e) {
		word = replica_word(s->owner, s->service, now->period, flags);
		switch (replica_insert_entry(s->key, &word)) {
		case REPLICA_INSERTED:
			s->flags |= PEER_NEW;
			return 0;
		case REPLICA_FULL:
			return DROPPED_TABLE_FULL;
		case REPLICA_BUSY:
			return DROPPED_TABLE_BUSY;
		}
		e = replica_find(&replica_entries, s->key);
		if (!e)
			return DROPPED_TABLE_BUSY;
	}
	if (replica_is_gone(s->service, e->word))
		s->flags |= PEER_NEW;
	owner = replica_renew(e, s, now->period, flags);
	if (!owner)
		return DROPPED_TABLE_BUSY;
	s->owner = owner;
	return 0;
}

/* Takes the answer for a packet that came to this node. */
__noinline int replica_learn(const struct replica_step *s)
{
	const struct replica_current *now = replicas_now();
	__u8 flags = REPLICA_CACHEABLE;
	struct replica_entry *e;
	__u64 word, before;

	if (!s || !now)
		return 0;
	e = replica_find(&replica_entries, s->key);
	before = e ? *(volatile __u64 *)&e->word : 0;
	if (before && replica_flags(before) & REPLICA_CACHEABLE) {
		if ((__u16)before == s->owner) {
			replica_renew(e, s, now->period, 0);
			return 0;
		}
		if (replica_conflict(s->service, before, now->period))
			return 0;
	}
	if (s->flags & PEER_NEW && s->owner == s->proposed && !(s->flags & PEER_OUTBOUND))
		flags |= REPLICA_DISPATCHED;
	word = replica_word(s->owner, s->service, now->period, flags);
	e = replica_find(&replica_answers, s->key);
	if (!e) {
		if (replica_insert_answer(s->key, &word) != REPLICA_EXISTS)
			return 0; /* where there is no room for it the next packet asks again */
		e = replica_find(&replica_answers, s->key);
	}
	before = e ? *(volatile __u64 *)&e->word : 0;
	if (!before)
		return 0;
	if ((__u16)before != s->owner && replica_conflict(s->service, before, now->period))
		return 0;
	word = replica_word(s->owner, s->service, now->period, flags | (replica_flags(before) & REPLICA_DISPATCHED));
	__sync_val_compare_and_swap(&e->word, before, word);
	return 0;
}
