/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* hold_back.h - Cheetah IV-A, IV-B: the cookie in TSval without ever running ahead of what PAWS lets pass.
 *
 *   wire timestamp W = V << c | cookie        V = T - delta        T: what the kernel wrote, in ms
 *
 * c bits of shift make the wire clock run 2^c times too fast: a silent client would see W jump by more than 2^31 and
 * drop it (RFC 7323 5.3). Departs from Cheetah, which stalls there: V is held back at limit = 2^(30-c) ms ahead of the
 * newest echo, so that W is never more than 2^30 ahead of what the client has. Restoring needs no clock: an echo is at
 * most one limit newer than the newest V sent (a SYN-ACK sent again), and less than three older.
 *
 * The cookie of a connection turns into another one when keys rotate, and when a load balancer has put a tag into it.
 * It turns with a V that is newer than all before, so that W never steps back, and not again before the client has
 * echoed one from after that: echoes of two cookies at most are under way, and V tells which of them the server sent.
 *
 * Two CPUs may work on one socket. A torn update makes one echo inexact and harms nothing else.
 */
#pragma once

#include "wire/kernel.h"
#include "server/agent.h"
#include "server/flow/flow.h"

/* Implementation constants */
#define BEHIND_ECHO_MS (1u << 24) /* V a little behind the newest echo is reordering; farther is a wrapped clock */
#define ECHO_AGE_SLACK_MS 2000 /* ts_recent_stamp counts seconds */
#define START_DELTA ((__u32)-1) /* V = T + 1 after the handshake: a rotation in its midst must not make W step back */
#define COOKIE_BITS_MAX 16
#define CLOCK_SLACK_MS 64 /* the coarse clock may be a tick (10 ms at 100 Hz) behind the packets' */

enum hold_back_state {
	HOLD_BACK_NEW,
	HOLD_BACK_MARKED,
	HOLD_BACK_UNMARKED_USEC,
	HOLD_BACK_UNMARKED_OLDER,
	HOLD_BACK_TRANSLATED
};

struct hold_back {
	__u32 delta;
	__u32 held_from,
		delta_before; /* echoes from before V = held_from belong to delta_before, and to cookie_before */
	__u32 newest_sent, newest_echo; /* as V */
	__u32 generation; /* of the services when the cookie was made */
	__u16 cookie, cookie_before; /* echoes of the one before are still under way */
	__u8 cookie_bits : 5; /* never changes in the life of a connection */
	__u8 behind : 1; /* the newest echo has a cookie of the other epoch */
	__u8 state;
	__u16 tag; /* what a load balancer has last put above the id; the cookie follows */
};
_Static_assert(sizeof(struct hold_back) == 32, "hold_back");

/* A listener has one that stays HOLD_BACK_NEW: the kernel copies it into every connection it accepts. One without is
 * older than the agent, unless server/timestamp/begin.h knows better. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct hold_back);
} hold_backs SEC(".maps");

/* Since when cookies are written, and with the key that they are written with. */
struct turn {
	__u64 since_ns; /* 0: no device has the programs yet */
	__u64 turned_ns; /* 0: since the agent came */
	__u32 parity;
	__u32 known; /* else the agent has not served anything yet */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct turn);
} last_turn SEC(".maps");

/* What is exceptional about a flow, for packets that the kernel sends without its socket (TIME_WAIT), and for
 * handshakes under way when the agent came. Absent: marked, START_DELTA. */
struct flow_key {
	struct served_key service;
	__be32 client[4];
	__be16 client_port;
	__u16 pad;
};
_Static_assert(sizeof(struct flow_key) == 40, "flow_key");

struct exception {
	__u32 delta;
	__u32 unmarked;
	__be32 handshake_echo; /* of the unmarked handshake: tells it from another use of the same ports */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct exception);
} exceptions SEC(".maps");

/* The newest clock value not after limit that agrees with V in the bits that fit on the wire. */
inline_always __u32 hold_back_extend(__u32 v, __u32 limit, __u8 cookie_bits)
{
	__u32 mask = 0xffffffff >> (cookie_bits & 31);

	return limit - ((limit - v) & mask);
}

inline_always __u32 hold_back_limit(const struct hold_back *h)
{
	return 1u << ((30 - h->cookie_bits) & 31);
}

/* Has nothing been sent since the handshake? */
inline_always _Bool hold_back_is_unused(const struct hold_back *h)
{
	return (__s32)(h->newest_sent - h->held_from) < 0;
}

/* May the packet with this T be the first one with another cookie? */
inline_always _Bool hold_back_may_turn(const struct hold_back *h, __u32 t)
{
	return (hold_back_is_unused(h) || (__s32)(h->newest_echo - h->held_from) >= 0) &&
	       (__s32)(t - h->delta - h->newest_sent) > 0 &&
	       (__s32)(h->newest_echo + hold_back_limit(h) - h->newest_sent) > 0;
}

inline_always _Bool hold_back_other_epoch(const struct hold_back *h, __u32 w)
{
	return (w ^ h->cookie) >> ((h->cookie_bits - 1) & 31) & 1;
}

/* Echoes of what was sent so far are of the cookie before. */
inline_always void hold_back_turn(struct hold_back *h, __u32 t, __u16 cookie)
{
	h->behind ^= hold_back_other_epoch(h, cookie);
	h->cookie_before = h->cookie;
	h->cookie = cookie;
	if (hold_back_is_unused(h))
		return;
	h->delta_before = h->delta;
	h->held_from = t - h->delta;
}

/* T -> V; holds back when the client has been silent. */
inline_always __u32 hold_back_forward(struct hold_back *h, __u32 t, _Bool *held)
{
	__u32 limit = hold_back_limit(h);
	__u32 v = t - h->delta;

	if (v - h->newest_echo + BEHIND_ECHO_MS > limit + BEHIND_ECHO_MS) {
		v = h->newest_echo + limit;
		if (v != h->held_from) {
			h->delta_before = h->delta;
			h->held_from = v;
		}
		h->delta = t - v;
		*held = 1;
	}
	if (!(v << (h->cookie_bits & 31) | h->cookie)) /* 0 on the wire means: no timestamp */
		v++;
	if ((__s32)(v - h->newest_sent) > 0)
		h->newest_sent = v;
	return v;
}

/* W of an echo -> V */
inline_always __u32 hold_back_read(const struct hold_back *h, __u32 w)
{
	return hold_back_extend(w >> (h->cookie_bits & 31), h->newest_sent + hold_back_limit(h), h->cookie_bits);
}

/* W of an echo -> T, exactly. */
inline_always __u32 hold_back_restore(struct hold_back *h, __u32 w)
{
	__u32 v = hold_back_read(h, w);

	if ((__s32)(v - h->newest_echo) >= 0 && (__s32)(v - h->newest_sent) <= 0) {
		h->newest_echo = v;
		if (h->behind != hold_back_other_epoch(h, w))
			h->behind = !h->behind;
	}
	return v + ((__s32)(v - h->held_from) >= 0 ? h->delta : h->delta_before);
}

/* Was this sent before the cookie turned? */
inline_always _Bool hold_back_is_late(const struct hold_back *h, __u32 w)
{
	return !hold_back_is_unused(h) && (__s32)(hold_back_read(h, w) - h->held_from) < 0;
}

inline_always __u32 hold_back_cookie(const struct hold_back *h, __u32 w)
{
	return w & ((1u << (h->cookie_bits & 31)) - 1);
}

inline_always void flow_key_fill(struct flow_key *key, const struct flow *f)
{
	key->service = f->key;
	__builtin_memcpy(key->client, f->client, 16);
	key->client_port = f->client_port;
	key->pad = 0;
}
