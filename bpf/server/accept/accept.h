/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* accept.h - dispatch choices (SHELL III-B): does this server take the connection of a SYN, or the next candidate?
 * Whose request or connection is here already is taken, so that a SYN that comes again finds the server that answered
 * the first. */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/mix.h"
#include "wire/parse.h"
#include "wire/siphash.h"
#include "wire/tunnel.h"
#include "server/agent.h"
#include "server/verdict.h"
#include "server/socket/socket.h"
#include "server/accept/acceptance.h"
#include "server/accept/deliver.h"

inline_always enum agent_verdict accepted_at(__u32 column)
{
	return column < PASSED_ON_FIRST - ACCEPTED_FIRST ? ACCEPTED_FIRST + column : ACCEPTED_FOURTH;
}

inline_always enum agent_verdict passed_on_at(__u32 column)
{
	return column < DROPPED_MALFORMED_TUNNEL - PASSED_ON_FIRST ? PASSED_ON_FIRST + column : PASSED_ON_THIRD;
}

inline_always __u32 accept_load(const struct served *served, __u32 backlog)
{
	__u32 at = served->acceptance;
	const __u32 *word = bpf_map_lookup_elem(&loads, &at);
	const __s64 *live;
	__s64 connections;

	if (served->load == ACCEPT_LOAD_BACKLOG)
		return backlog;
	if (!word)
		return 0;
	if (served->load != ACCEPT_LOAD_CONNECTIONS)
		return *word;
	live = bpf_map_lookup_elem(&live_connections, &at);
	connections = (live ? *live : 0) + (__s32)*word;
	return connections < 0 ? 0 : connections;
}

/* How far the limit moves from one load towards another, greater one. */
inline_always __u32 accept_step(__u32 from, __u32 to)
{
	__u32 step = to > from ? (to - from) / 4 : 0;

	return step ?: 1;
}

/* 6LB's SRdyn: the limit follows the load such that about half of the attempts are accepted. An attempt that two CPUs
 * make at once counts once. */
inline_always _Bool accept_dynamic(const struct served *served, __u32 load)
{
	__u32 at = served->acceptance, limit, attempts, accepted;
	__u64 *word = bpf_map_lookup_elem(&limits, &at), before;
	_Bool accept;

	if (!word)
		return 1;
	before = *(volatile __u64 *)word;
	limit = before >> 32;
	accept = load < limit;
	attempts = (before >> 16 & 0xffff) + 1;
	accepted = (before & 0xffff) + accept;
	if (attempts >= served->window) {
		if (accepted < served->low)
			limit += limit == 0xffffffff ? 0 : accept_step(limit, load);
		else if (accepted > served->high)
			limit -= limit == 0 ? 0 : accept_step(load, limit);
		attempts = accepted = 0;
	}
	__sync_val_compare_and_swap(word, before, (__u64)limit << 32 | attempts << 16 | accepted);
	return accept;
}

inline_always _Bool accept_by_load(const struct served *served, __u32 backlog)
{
	__u32 load = accept_load(served, backlog);

	return served->policy == ACCEPT_POLICY_DYNAMIC ? accept_dynamic(served, load) : load < served->threshold;
}

/* A SYN that comes again has the same sequence number, another connection by the same ports another one. */
inline_always __u64 accept_fingerprint(const struct packet *p, const struct tcphdr *tcp, __u32 acceptance)
{
	struct siphash_key none = {};

	return mix64(placement_mix(&none, p) ^ (tcp->seq | (__u64)acceptance << 32));
}

struct candidacy {
	_Bool takes; /* the connection or its request is here */
	_Bool possible; /* somebody listens, as far as one can see: else in no case */
	__u32 backlog; /* of the listener, if that is the load */
};

inline_always void accept_probe(struct xdp_md *ctx, const struct packet *p, const struct served *served,
				struct candidacy *c)
{
	struct bpf_sock *sk =
		deliver_lookup(ctx, p->source, p->destination, p->source_port, p->destination_port, p->ipv6);

	if (!sk)
		return;
	c->possible = 1;
	c->takes = sk->state != SOCKET_LISTEN && sk->state != SOCKET_TIME_WAIT;
	if (sk->state == SOCKET_LISTEN && served->load == ACCEPT_LOAD_BACKLOG) {
		const struct sock *listener = socket_address(sk);

		c->backlog = BPF_CORE_READ(listener, sk_ack_backlog);
	}
	bpf_sk_release(sk);
}

/* Does this server take a SYN that has stops left? */
inline_always _Bool accept_takes(struct xdp_md *ctx, const struct tunnel *t, const struct packet *p,
				 const struct served *served)
{
	const struct tcphdr *tcp = packet_at((void *)(long)ctx->data, p->l4);
	struct candidacy c = {};
	__u64 fingerprint, *entry;
	__u32 now, age, index;

	if (!t->left)
		return 1;
	accept_probe(ctx, p, served, &c);
	if (c.takes)
		return 1;
	if ((void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return 0;
	fingerprint = accept_fingerprint(p, tcp, served->acceptance);
	index = fingerprint & ((1 << PASSED_ON_BITS) - 1);
	entry = bpf_map_lookup_elem(&passed_on, &index);
	if (!entry)
		return 0;
	now = socket_clock_ms();
	age = *entry >> 32 == fingerprint >> 32 ? now - (__u32)*entry : PASSED_ON_MS;
	if (age < PASSED_ON_MS)
		return age >= PASSED_ON_AGAIN_MS && c.possible; /* the other candidates are dead, or drop it */
	if (c.possible && !(served->flags & SERVED_NO_NEW) && accept_by_load(served, c.backlog))
		return 1;
	*entry = fingerprint >> 32 << 32 | now;
	return 0;
}
