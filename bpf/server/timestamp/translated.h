/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* translated.h - connections that the server's own address translation takes elsewhere: another port, another address,
 * a container.
 *
 * Programs at tc see the service's address and port in both directions: translation comes after ingress and is undone
 * before egress. But no socket of this host has that address and port. So what hold_backs has for a socket is kept here
 * for a flow, from the handshake on. A SYN-ACK leaves one word in handshakes, so that a flood of SYNs pushes nobody out
 * who is connected. Entries of connections that have ended, and of those that translation has forgotten, are freed by
 * user space (server/walk/sweep.h): what an LRU evicts may be alive.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/history.h"
#include "wire/parse.h"
#include "server/agent.h"
#include "server/verdict.h"
#include "server/socket/socket.h"
#include "server/flow/flow.h"
#include "server/timestamp/column.h"
#include "server/timestamp/hold_back.h"
#include "server/timestamp/mark.h"
#include "server/timestamp/rewrite.h"

/* Implementation constants */
#define HANDSHAKE_MS 64000 /* between the first and the last SYN-ACK of a handshake */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, __u32); /* TSval of the last SYN-ACK, before it was marked */
} translated_handshakes SEC(".maps");

/* What the state of an entry's hold_back is here. */
#define TRANSLATED_AGE 63 /* looks of user space since its last packet, at most so many */
#define TRANSLATED_CLIENT_ENDED 64
#define TRANSLATED_SERVER_ENDED 128
#define TRANSLATED_ENDED (TRANSLATED_CLIENT_ENDED | TRANSLATED_SERVER_ENDED)

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536); /* user space sizes it */
	__type(key, struct flow_key);
	__type(value, struct hold_back);
} translated SEC(".maps");

volatile __u64 translated_begun; /* entries that this process's programs have added */

/* A packet of the connection, of the side whose end its FIN is. */
inline_always void translated_seen(struct hold_back *h, __u8 tcp_flags, __u8 side)
{
	__u8 ended = tcp_flags & TCP_FLAG_RST_BIT ? TRANSLATED_ENDED : tcp_flags & TCP_FLAG_FIN_BIT ? side : 0;
	__u8 state = (h->state & ~TRANSLATED_AGE) | ended;

	if (h->state != state)
		h->state = state;
}

/* An RST that this host sends without a timestamp: the connection has ended, or is known to nobody. */
static __noinline int translated_reset(const struct flow *f)
{
	struct hold_back *h;
	struct flow_key key;

	if (!f)
		return 0;
	flow_key_fill(&key, f);
	h = bpf_map_lookup_elem(&translated, &key);
	if (h)
		h->state |= TRANSLATED_ENDED;
	return 0;
}

/* Has translation changed the source of what is about to leave? Either it comes from somewhere else, or its socket has
 * another name. The kernel's own raw sockets have none. */
inline_always _Bool is_translated(struct __sk_buff *skb, const struct flow *f, struct bpf_sock *sk,
				  struct bpf_sock *full)
{
	if (!sk)
		return skb->ingress_ifindex;
	if (full && full->type != SOCKET_TYPE_STREAM)
		return 0;
	if (sk->src_port != bpf_ntohs(f->key.port))
		return 1;
	if (!f->key.ipv6)
		return sk->src_ip4 && sk->src_ip4 != f->key.address[0];
	return sk->family == AF_INET6 && (sk->src_ip6[0] | sk->src_ip6[1] | sk->src_ip6[2] | sk->src_ip6[3]) &&
	       ((sk->src_ip6[0] ^ f->key.address[0]) | (sk->src_ip6[1] ^ f->key.address[1]) |
		(sk->src_ip6[2] ^ f->key.address[2]) | (sk->src_ip6[3] ^ f->key.address[3]));
}

/* A SYN cookie has no socket: it is translated where nobody listens at its source. */
static __noinline int is_translated_cookie(struct __sk_buff *skb, const struct flow *f)
{
	struct bpf_sock *listener;

	if (!f)
		return 0;
	listener = socket_find(skb, f->client, &f->key, f->client_port);
	if (listener)
		bpf_sk_release(listener);
	return !listener;
}

static __noinline int translated_handshake(const struct flow *f)
{
	struct flow_key key;
	__u32 value;

	if (!f)
		return 0;
	value = bpf_ntohl(f->value);
	flow_key_fill(&key, f);
	bpf_map_update_elem(&translated_handshakes, &key, &value, BPF_ANY);
	return 0;
}

/* Marks what is not a SYN-ACK. */
static __noinline enum agent_verdict mark_translated(struct __sk_buff *skb, const struct flow *f,
						     const struct served *served)
{
	struct hold_back *h;
	struct flow_key key;
	__u32 t, w, now;
	_Bool held = 0;

	if (!f || !served)
		return EGRESS_NOT_SERVED;
	flow_key_fill(&key, f);
	h = bpf_map_lookup_elem(&translated, &key);
	if (!h)
		return EGRESS_UNMARKED_OLDER_THAN_AGENT;
	t = bpf_ntohl(f->value);
	now = current_generation();
	if (h->generation != now)
		mark_refresh(h, served, f, now, t);
	translated_seen(h, f->tcp_flags, TRANSLATED_SERVER_ENDED);
	w = hold_back_forward(h, t, &held) << (h->cookie_bits & 31) | h->cookie;
	rewrite(skb, f, TO_CLIENT, bpf_htonl(w));
	return EGRESS_MARKED_TRANSLATED;
}

/* The third packet of a handshake, of which w is an echo. 0: it is not. */
static __noinline int translated_begin(const struct flow *f, const struct served *served, const struct flow_key *key,
				       __u32 w)
{
	struct hold_back h = { .delta = START_DELTA };
	const __u32 *last;
	_Bool known;
	__u32 sent;

	if (!f || !served || !key)
		return 0;
	last = bpf_map_lookup_elem(&translated_handshakes, key);
	if (!last)
		return 0;
	sent = *last;
	if (mark_read_tag(served, f, w) < 0 ||
	    sent - hold_back_extend(w >> (served->cookie_bits & 31), sent, served->cookie_bits) > HANDSHAKE_MS)
		return 0;
	h.cookie_bits = served->cookie_bits;
	h.newest_sent = h.newest_echo = sent;
	h.held_from = sent + 1; /* echoes of the handshake have no delta */
	h.generation = current_generation();
	h.tag = served->flags & SERVED_HISTORY ? history_column(w) : 0;
	h.cookie = mark_cookie(served, f, served->epoch_parity, h.tag);
	h.cookie_before = mark_cookie(served, f, !served->epoch_parity, h.tag);
	known = !!bpf_map_lookup_elem(&translated, key);
	if (!bpf_map_update_elem(&translated, key, &h, BPF_ANY) && !known)
		__sync_fetch_and_add(&translated_begun, 1);
	bpf_map_delete_elem(&translated_handshakes, key);
	if (served->flags & SERVED_HISTORY)
		bpf_map_delete_elem(&columns, key);
	return 1;
}

/* For what has no socket of its own here. INGRESS_NO_SOCKET: it is none of these connections. */
static __noinline enum agent_verdict restore_translated(const struct served *served, const struct flow *f,
							__u32 *restored)
{
	struct hold_back *h;
	struct flow_key key;
	__u32 w;

	if (!served || !f || !restored)
		return INGRESS_NO_SOCKET;
	w = bpf_ntohl(f->echo);
	flow_key_fill(&key, f);
	translated_begin(f, served, &key, w);
	h = bpf_map_lookup_elem(&translated, &key);
	if (!h)
		return INGRESS_NO_SOCKET;
	if (hold_back_cookie(h, w) != h->cookie && !mark_adopt(h, served, f, w))
		return INGRESS_BAD_COOKIE;
	translated_seen(h, f->tcp_flags, TRANSLATED_CLIENT_ENDED);
	*restored = hold_back_restore(h, w);
	return INGRESS_RESTORED_TRANSLATED;
}

/* Does this host translate the packet's connection? */
inline_always _Bool is_translated_here(const struct packet *p)
{
	struct flow_key key = {};

	flow_key_of_packet(&key, p);
	return bpf_map_lookup_elem(&translated, &key) || bpf_map_lookup_elem(&translated_handshakes, &key);
}
