/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* mark.h - the decisions about TCP timestamps on a server: what is marked, with which cookie, and what is restored. */
#pragma once

#include "wire/kernel.h"
#include "wire/cookie.h"
#include "wire/history.h"
#include "wire/siphash.h"
#include "server/agent.h"
#include "server/socket/socket.h"
#include "server/flow/flow.h"
#include "server/timestamp/column.h"
#include "server/timestamp/hold_back.h"

inline_always __u32 current_generation(void)
{
	__u32 zero = 0, *value = bpf_map_lookup_elem(&generation, &zero);

	return value ? *value : 0;
}

/* A global function: verified once. */
__noinline __u64 mark_hash(const struct served *served, const struct flow *f, __u8 parity)
{
	struct siphash_state begun;

	if (!served || !f)
		return 0;
	begun = siphash_begin(&served->cookie_key[parity & 1]);
	return flow_hash(&begun, f->client, f->client_port, f->key.port, f->key.ipv6);
}

/* tag: what a load balancer put above the id; 0 before. Affinity history: the column, which is all of the cookie. */
inline_always __u16 mark_cookie(const struct served *served, const struct flow *f, __u8 parity, __u16 tag)
{
	__u16 plain;

	if (served->flags & SERVED_HISTORY)
		return tag;
	plain = served->id ^ tag << (served->id_bits & 15);

	return cookie_make(plain, mark_hash(served, f, parity), parity, served->cookie_bits);
}

/* Reads an echo by the key that it names. -1: this server did not write it for this flow; else its tag. */
inline_always int mark_read_tag(const struct served *served, const struct flow *f, __u32 w)
{
	__u8 bits = served->cookie_bits, id_bits = served->id_bits;
	__u32 others;

	if (served->flags & SERVED_HISTORY)
		return history_column(w);
	others = cookie_plain(w, mark_hash(served, f, cookie_epoch_parity(w, bits)), bits) ^ served->id;
	if (!id_bits) /* the row is older than tags */
		return others ? -1 : 0;
	return others & ((1u << (id_bits & 15)) - 1) ? -1 : others >> (id_bits & 15);
}

/* The cookie follows the services and the tag; t is the kernel's timestamp of the packet to be marked. A connection of
 * a service that is gone keeps what it has. When the cookie may not turn yet, a later packet tries again. */
static __noinline void mark_refresh(struct hold_back *h, const struct served *served, const struct flow *f, __u32 now,
				    __u32 t)
{
	__u16 cookie;

	if (!served || !(served->flags & (SERVED_COOKIE | SERVED_RETIRED)) || served->flags & SERVED_HISTORY ||
	    served->cookie_bits != h->cookie_bits) {
		h->generation = now;
		return;
	}
	if (!hold_back_may_turn(h, t))
		return;
	h->generation = now;
	cookie = mark_cookie(served, f, served->epoch_parity, h->tag);
	if (cookie != h->cookie)
		hold_back_turn(h, t, cookie);
}

/* An echo that does not have the connection's cookie. 0: this server did not write it.
 *
 * Departs from Cheetah III-B, where the load balancer keeps the server: one with a connection table puts its index, the
 * tag, into the cookie of a client's packets, and the connection carries it from then on. What was sent before the
 * cookie turned asks for nothing: it may be late, and the next packet tells again. Tag 0 is what connections begin
 * with: nobody puts it in. A column is never another one: no key tells who wrote it. */
static __noinline int mark_adopt(struct hold_back *h, const struct served *served, const struct flow *f, __u32 w)
{
	_Bool late = hold_back_is_late(h, w), before = hold_back_cookie(h, w) == h->cookie_before;
	int tag;

	if ((late && before) || served->flags & SERVED_HISTORY || served->cookie_bits != h->cookie_bits)
		return before;
	tag = mark_read_tag(served, f, w);
	if (tag > 0 && !late) {
		h->tag = tag;
		h->generation = current_generation() - 1;
	}
	return tag >= 0;
}

/* What the handshake's last echo was, as T. The socket knows; after SYN cookies only its low bits are right. The time
 * when it came bounds it, so that a client that waits for long before it speaks is held back too. 0: there was none. */
inline_always __u32 handshake_echo(const struct tcp_sock *tcp, __u64 now_ns, __u32 t, __u8 cookie_bits)
{
	__u32 echo = BPF_CORE_READ(tcp, rx_opt.rcv_tsecr), age;

	if (!echo)
		return 0;
	age = now_ns / 1000000000 - BPF_CORE_READ(tcp, rx_opt.ts_recent_stamp);
	return hold_back_extend(echo + BPF_CORE_READ(tcp, tsoffset), t - age * 1000 + ECHO_AGE_SLACK_MS, cookie_bits);
}

/* Did the server send this T before cookies turned into those of the other key? */
inline_always _Bool sent_before_turn(__u32 sent, __u64 now_ns, __u32 t)
{
	__u32 zero = 0;
	const struct turn *last = bpf_map_lookup_elem(&last_turn, &zero);

	return last && last->turned_ns && t - sent + CLOCK_SLACK_MS >= (now_ns - last->turned_ns) / 1000000;
}

/* The first packet of a connection after its handshake; t is the kernel's timestamp clock for this socket, now.
 * COLUMN_UNKNOWN: nothing tells which column it is of, and it is marked as one of the first. */
static __noinline int mark_start(struct hold_back *h, const struct served *served, const struct flow *f,
				 const struct tcp_sock *tcp, __u32 t)
{
	const struct exception *exception;
	__u64 now_ns = bpf_ktime_get_coarse_ns();
	struct flow_key key;
	__u32 echo;
	int column = 0;

	if (!h || !served || !f)
		return 0;
	if (socket_uses_usec(tcp)) {
		h->state = HOLD_BACK_UNMARKED_USEC;
		return 0;
	}
	echo = BPF_CORE_READ(tcp, rx_opt.rcv_tsecr) + BPF_CORE_READ(tcp, tsoffset);
	flow_key_fill(&key, f);
	exception = bpf_map_lookup_elem(&exceptions, &key);
	if (exception && exception->unmarked && exception->handshake_echo == bpf_htonl(echo)) {
		h->state = HOLD_BACK_UNMARKED_OLDER;
		return 0;
	}
	echo = handshake_echo(tcp, now_ns, t, served->cookie_bits);
	h->cookie_bits = served->cookie_bits;
	h->newest_echo = echo ? echo : t;
	h->newest_sent = h->newest_echo;
	h->delta = START_DELTA;
	h->held_from = h->newest_echo + 1; /* echoes of the handshake have no delta */
	h->generation = current_generation();
	if (served->flags & SERVED_HISTORY) {
		column = column_find(f);
		column_forget(f);
		h->tag = column < 0 ? 0 : column;
	}
	h->cookie = mark_cookie(served, f, served->epoch_parity, h->tag);
	/* The handshake may have been marked just before a rotation. */
	h->cookie_before = mark_cookie(served, f, !served->epoch_parity, h->tag);
	h->behind = !(served->flags & SERVED_HISTORY) && sent_before_turn(h->newest_echo, now_ns, t);
	h->state = HOLD_BACK_MARKED;
	return column;
}

/* The socket's TIME_WAIT will not see its storage. */
static __noinline int mark_remember(const struct flow *f, __u32 delta, __u32 unmarked)
{
	struct exception exception = { .delta = delta, .unmarked = unmarked };
	struct flow_key key;

	if (!f)
		return 0;
	flow_key_fill(&key, f);
	if (delta != START_DELTA || unmarked)
		bpf_map_update_elem(&exceptions, &key, &exception, BPF_ANY);
	else
		bpf_map_delete_elem(&exceptions, &key);
	return 0;
}

/* No SYN-ACK of the request is newer. */
inline_always __u32 request_last(const struct tcp_request_sock *request)
{
	if (bpf_core_field_exists(request->snt_tsval_last))
		return BPF_CORE_READ(request, snt_tsval_last);
	return socket_clock_ms() + BPF_CORE_READ(request, ts_off) + CLOCK_SLACK_MS;
}

/* The third packet of a handshake. Only what is certain is exact: between the first and the last SYN-ACK, or since 6.15
 * the kernel refuses it. */
inline_always __u32 mark_restore_request(__u32 last, const struct served *served, __u32 w)
{
	return hold_back_extend(w >> (served->cookie_bits & 31), last, served->cookie_bits);
}

/* Does the echo name a SYN-ACK as the kernel wrote it? Then it left before the agent came. */
inline_always _Bool request_was_unmarked(const struct tcp_request_sock *request, __u32 last, __u32 echo)
{
	__u32 first = last - 64000;

	if (bpf_core_field_exists(request->snt_tsval_last))
		first = BPF_CORE_READ(request, snt_tsval_first);
	return echo - first <= last - first;
}
