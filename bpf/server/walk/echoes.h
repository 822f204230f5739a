/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* echoes.h - which epochs clients echo, so that user space knows when a key is unused. */
#pragma once

#include "wire/kernel.h"
#include "wire/history.h"
#include "server/agent.h"
#include "server/socket/socket.h"
#include "server/timestamp/hold_back.h"
#include "server/timestamp/mark.h"
#include "server/accept/live.h"

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__tcp {
	__bpf_md_ptr(struct bpf_iter_meta *, meta);
	__bpf_md_ptr(struct sock_common *, sk_common);
};

/* Walks the TCP sockets of this network namespace and writes for each living connection with a cookie one byte: the
 * parity of the epoch that its client has echoed last. By the sockets and not by hold_backs: some kernels refuse
 * iterators of storage (EPERM). */
inline_always int echoes_write(struct bpf_iter__tcp *ctx)
{
	struct tcp_sock *tcp = ctx->sk_common ? bpf_skc_to_tcp_sock(ctx->sk_common) : 0;
	struct sock *sk = (void *)tcp;
	const struct hold_back *h;
	const struct served *served;
	struct served_key key = {};
	const struct turn *last;
	__u64 now_ns = bpf_ktime_get_ns();
	__u32 zero = 0, t;
	__u8 parity;

	if (!tcp || sk->__sk_common.skc_state == SOCKET_LISTEN || sk->__sk_common.skc_state == SOCKET_CLOSE)
		return 0;
	h = bpf_sk_storage_get(&hold_backs, tcp, 0, 0);
	if (!h)
		return 0;
	if (h->state == HOLD_BACK_MARKED) {
		if (h->cookie_bits == HISTORY_BITS) /* no key */
			return 0;
		parity = (h->cookie >> ((h->cookie_bits - 1) & 31) & 1) ^ h->behind;
	} else if (h->state == HOLD_BACK_NEW && BPF_CORE_READ_BITFIELD_PROBED(tcp, rx_opt.tstamp_ok)) {
		last = bpf_map_lookup_elem(&last_turn, &zero);
		if (!last)
			return 0;
		live_key(&key, sk);
		served = served_find(&key);
		if (served && served->flags & SERVED_HISTORY)
			return 0;
		t = now_ns / 1000000 + BPF_CORE_READ(tcp, tsoffset);
		parity = last->parity ^ sent_before_turn(handshake_echo(tcp, now_ns, t, COOKIE_BITS_MAX), now_ns, t);
	} else {
		return 0;
	}
	bpf_seq_write(ctx->meta->seq, &parity, sizeof(parity));
	return 0;
}
