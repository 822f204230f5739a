/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* chain.h - Anolis 4.3.1: what a question about a connection becomes at this node: an answer, or a message to another
 * node of its chain. */
#pragma once

#include "wire/kernel.h"
#include "lb/packet/peer_message.h"
#include "lb/state/replicas.h"
#include "lb/state/ring.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/replica_table.h"
#include "lb/affinity/replicated.h"

enum replica_outcome {
	REPLICA_SEND,
	REPLICA_DELIVER, /* this node is the forwarder: owner is known */
	REPLICA_FALL_BACK, /* no room for an entry: to owner, which is known nevertheless, or by placement */
	REPLICA_DROP,
	REPLICA_HERE, /* goes on at this node; never leaves this file */
};

/* This node's position in the chain of a question. */
struct chain_position {
	__u16 head, tail, next; /* next: the node behind this one */
	__u8 at; /* from the head; REPLICA_CHAIN: nowhere */
	_Bool last_is_member; /* the sender of a Write is in the chain */
};

inline_always struct chain_position chain_position_of(const struct replica_chain *chain, const struct replica_step *s,
						      __u16 self)
{
	struct chain_position p = { .head = chain->node[0], .at = REPLICA_CHAIN };

	for (__u32 i = 0; i < REPLICA_CHAIN; i++) {
		if (i >= chain->length)
			continue;
		p.tail = chain->node[i];
		if (p.at + 1 == i)
			p.next = p.tail;
		if (p.tail == self)
			p.at = i;
		p.last_is_member |= p.tail == s->last;
	}
	return p;
}

/* Sends what s has become to `to`. REPLICA_HERE: that is this node. */
inline_always int replica_pass(struct replica_step *s, __u8 kind, __u16 to, __u16 self)
{
	s->kind = kind;
	s->to = to;
	s->hops++;
	return to == self ? REPLICA_HERE : REPLICA_SEND;
}

/* Answers, passes on, or makes a Write of the question. */
inline_always int replica_who_owns(struct replica_step *s, const struct chain_position *p, __u16 self, __u32 period)
{
	struct replica_known known = {};
	const struct replica_entry *e;
	__u64 word;

	if (p->tail != self) {
		replica_usable(s->key, s->service, &known);
		if (!known.owner)
			return replica_pass(s, PEER_WHO_OWNS, p->tail, self);
		s->owner = known.owner;
		return replica_pass(s, PEER_OWNS, s->forwarder, self);
	}
	e = replica_find(&replica_entries, s->key);
	word = e ? *(const volatile __u64 *)&e->word : 0;
	if (word && replica_is_gone(s->service, word))
		word = 0;
	if (s->flags & PEER_LOOKUP || (replica_flags(word) & REPLICA_CACHEABLE && replica_is_of_period(word, period))) {
		s->owner = replica_flags(word) & REPLICA_CACHEABLE ? word : 0;
		return replica_pass(s, PEER_OWNS, s->forwarder, self);
	}
	if (word) { /* written again, so that all of the chain know that it is in use */
		s->owner = word;
		s->flags |= PEER_KNOWN;
	}
	s->last = 0;
	return replica_pass(s, PEER_WRITE, p->head, self);
}

/* WriteIfNotExists (figure 6). */
inline_always int replica_write(struct replica_step *s, const struct chain_position *p, __u16 self)
{
	_Bool is_tail = p->tail == self;
	int why;

	s->verdict = DROPPED_NO_MEMBER;
	if (s->last ? !p->last_is_member || p->at >= REPLICA_CHAIN : p->at)
		return REPLICA_DROP;
	why = replica_keep(s, is_tail);
	if (why) {
		s->verdict = why;
		if (why != DROPPED_TABLE_FULL)
			return REPLICA_DROP;
		if (!s->last && !(s->flags & PEER_KNOWN))
			s->owner = NO_ID; /* nobody has an entry: what was proposed would be another one next time */
		return REPLICA_FALL_BACK;
	}
	s->last = self;
	return is_tail ? replica_pass(s, PEER_OWNS, s->forwarder, self) : replica_pass(s, PEER_WRITE, p->next, self);
}

/* This node has not taken the newest view yet, or is about to. What the forwarder has on record goes back, to be used
 * for this packet and not to be recorded again: the chain has not heard that the connection lives. */
inline_always int replica_send_back(struct replica_step *s, __u16 self)
{
	if (!(s->flags & PEER_RECORDED))
		return REPLICA_DROP;
	s->owner = s->proposed;
	s->flags = (s->flags & ~PEER_NEW) | PEER_LOOKUP;
	return replica_pass(s, PEER_OWNS, s->forwarder, self);
}

/* Sends a question for an older chain to the chain that this node knows. The chain treats it as a packet that arrived
 * at this node; only the answer goes to the node where it really arrived, which may have been removed from the ring and
 * not know it. */
inline_always int replica_ask_again(struct replica_step *s, const struct replica_chain *chain,
				    const struct chain_position *p, __u16 self)
{
	s->chain = chain->since;
	s->last = 0;
	return s->kind == PEER_WRITE ? replica_pass(s, PEER_WRITE, p->head, self)
				     : replica_pass(s, PEER_WHO_OWNS, p->tail, self);
}

/* What a question or a Write becomes at this node. */
__noinline int replica_step_on(struct replica_step *s)
{
	const struct replica_current *now = replicas_now();
	const struct replica_config *config = now ? replica_config_now(now) : 0;
	const struct replica_view *view = now ? replica_view_now(now) : 0;
	struct chain_position position;
	struct replica_chain chain;

	if (!s)
		return REPLICA_DROP;
	s->verdict = DROPPED_OTHER_VIEW;
	if (!config)
		return REPLICA_DROP;
	if (!view)
		return replica_send_back(s, config->self);
	chain = *replica_chain_of(view, s->key);
	if (s->chain > chain.since)
		return replica_send_back(s, config->self);
	s->verdict = DROPPED_TOO_MANY_HOPS;
	if (s->hops > view->hop_limit)
		return REPLICA_DROP;
	position = chain_position_of(&chain, s, config->self);
	if (s->chain != chain.since)
		return replica_ask_again(s, &chain, &position, config->self);
	if (s->kind == PEER_WHO_OWNS)
		return replica_who_owns(s, &position, config->self, now->period);
	return replica_write(s, &position, config->self);
}

/* Does what this node, to which s is sent, has to do about it, until it is sent on or is answered. */
__noinline int replica_receive(struct replica_step *s)
{
	if (!s)
		return REPLICA_DROP;
	for (int i = 0; i < 4 && s->kind != PEER_OWNS;
	     i++) { /* one of an older chain, a question, a Write and an answer at most */
		int outcome = replica_step_on(s);

		if (outcome != REPLICA_HERE)
			return outcome;
	}
	if (!(s->flags & PEER_LOOKUP))
		replica_learn(s);
	return REPLICA_DELIVER;
}

/* A packet from outside, of the connection s->key. s->owner: proposed, or known and to be seen by others. begins: the
 * connection most probably does. */
__noinline int replica_ask(struct replica_step *s, __u32 known, __u32 begins)
{
	const struct replica_current *now = replicas_now();
	const struct replica_config *config = now ? replica_config_now(now) : 0;
	const struct replica_view *view = now ? replica_view_now(now) : 0;
	const struct replica_chain *chain;

	if (!s)
		return REPLICA_DROP;
	s->verdict = DROPPED_OTHER_VIEW;
	if (!config)
		return REPLICA_DROP;
	s->proposed = s->owner;
	if (!view)
		return s->flags & PEER_RECORDED ? REPLICA_DELIVER : REPLICA_DROP;
	chain = replica_chain_of(view, s->key);
	s->chain = chain->since;
	s->forwarder = config->self;
	s->kind = PEER_WHO_OWNS;
	s->to = chain->node[(chain->length - 1) & (REPLICA_CHAIN - 1)];
	if ((known || begins) && !(s->flags & PEER_LOOKUP)) {
		s->kind = PEER_WRITE;
		s->to = chain->node[0];
	}
	return s->to == config->self ? replica_receive(s) : REPLICA_SEND;
}
