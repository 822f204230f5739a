/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* mark.h - the decisions about TCP timestamps on a server: what is marked, with which cookie, and what is restored. */
#pragma once

inline_always __u32 current_generation(void)
{
	__u32 zero = 0, *value = bpf_map_lookup_elem(&generation, &zero);

	return value ? *value : 0;
}

static __noinline __u16 mark_cookie(const struct served *served, const struct flow *f, __u8 parity)
{
	__u64 hash = flow_hash(&served->cookie_key[parity & 1], f->client, f->client_port, f->key.port, f->key.ipv6);

	return cookie_make(served->id, hash, parity, served->cookie_bits);
}

/* Was this echo written by this server for this flow, under either key? */
inline_always _Bool mark_is_mine(const struct served *served, const struct flow *f, __u32 w)
{
	__u8 parity = cookie_epoch_parity(w, served->cookie_bits);

	return mark_cookie(served, f, parity) == (w & ((1u << (served->cookie_bits & 31)) - 1));
}

/* The cookie follows the services; t is the kernel's timestamp of the packet to be marked. A connection of a service that
 * is gone keeps what it has. The new cookie may be the smaller one: V steps on, so that W never steps back. */
static __noinline void mark_refresh(struct hold_back *h, const struct served *served, const struct flow *f, __u32 now, __u32 t)
{
	__u16 cookie;

	h->generation = now;
	if (!served || !(served->flags & (SERVED_COOKIE | SERVED_RETIRED)) || served->cookie_bits != h->cookie_bits)
		return;
	cookie = mark_cookie(served, f, served->epoch_parity);
	if (cookie == h->cookie)
		return;
	h->cookie_before = h->cookie;
	h->cookie = cookie;
	h->delta_before = h->delta;
	h->delta--;
	h->held_from = t - h->delta;
}

/* The first packet of a connection after its handshake; t is the kernel's timestamp clock for this socket, now.
 *
 * What the handshake's last echo was, the socket knows; after SYN cookies only its low bits are right. The time when
 * it came bounds it, so that a client that waits for long before it speaks is held back too.
 */
static __noinline int mark_start(struct hold_back *h, const struct served *served, const struct flow *f,
				 const struct tcp_sock *tcp, __u32 t)
{
	__u32 echo, age, latest = t;
	struct flow_key key;
	const struct exception *exception;

	if (!h || !served || !f)
		return 0;
	echo = BPF_CORE_READ(tcp, rx_opt.rcv_tsecr);
	if (echo) {
		echo += BPF_CORE_READ(tcp, tsoffset);
		age = bpf_ktime_get_coarse_ns() / 1000000000 - BPF_CORE_READ(tcp, rx_opt.ts_recent_stamp);
		latest = t - age * 1000 + ECHO_AGE_SLACK_MS;
	}
	flow_key_fill(&key, f);
	exception = bpf_map_lookup_elem(&exceptions, &key);
	if (socket_uses_usec(tcp)) {
		h->state = HOLD_BACK_UNMARKED_USEC;
		return 0;
	}
	if (exception && exception->unmarked && exception->handshake_echo == bpf_htonl(echo)) {
		h->state = HOLD_BACK_UNMARKED_OLDER;
		return 0;
	}
	h->cookie_bits = served->cookie_bits;
	h->newest_echo = echo ? hold_back_extend(echo, latest, h->cookie_bits) : t;
	h->newest_sent = latest;
	h->delta = START_DELTA;
	h->held_from = h->newest_echo + 1; /* echoes of the handshake have no delta */
	h->generation = current_generation();
	h->cookie = mark_cookie(served, f, served->epoch_parity);
	/* The handshake may have been marked just before a rotation. */
	h->cookie_before = mark_cookie(served, f, !served->epoch_parity);
	h->state = HOLD_BACK_MARKED;
	return 0;
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

/* The third packet of a handshake. Only what is certain is exact: between the first and the last SYN-ACK, or since 6.15
 * the kernel refuses it. */
inline_always __u32 mark_restore_request(const struct tcp_request_sock *request, const struct served *served, __u32 w)
{
	__u32 last;

	if (bpf_core_field_exists(request->snt_tsval_last))
		last = BPF_CORE_READ(request, snt_tsval_last);
	else
		last = socket_clock_ms() + BPF_CORE_READ(request, ts_off) + CLOCK_SLACK_MS;
	return hold_back_extend(w >> (served->cookie_bits & 31), last, served->cookie_bits);
}

/* Does the echo name a SYN-ACK as the kernel wrote it? Then it left before the agent came. */
inline_always _Bool request_was_unmarked(const struct tcp_request_sock *request, __u32 echo)
{
	__u32 first, last;

	if (bpf_core_field_exists(request->snt_tsval_last)) {
		first = BPF_CORE_READ(request, snt_tsval_first);
		last = BPF_CORE_READ(request, snt_tsval_last);
	} else {
		last = socket_clock_ms() + BPF_CORE_READ(request, ts_off) + CLOCK_SLACK_MS;
		first = last - 64000;
	}
	return echo - first <= last - first;
}
