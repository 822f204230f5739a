/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* begin.h - a connection without the marker of its listener: is it older than the agent, or the child of another
 * listener?
 *
 * The kernel may clone a connection from another listener than the one that answered the SYN: when that one was closed
 * (tcp_migrate_req), or when a program spreads connections over listeners. Absence tells nothing then. As long as the
 * server has sent nothing, its client's last echo is that of the handshake, and that tells whether the SYN-ACK was
 * marked.
 */
#pragma once

#include "wire/kernel.h"
#include "server/agent.h"
#include "server/socket/socket.h"
#include "server/flow/flow.h"
#include "server/timestamp/hold_back.h"
#include "server/timestamp/mark.h"

/* Is w the echo of the SYN-ACK that completed the handshake, which the socket knows as it was before? A number that
 * agrees by chance: one in 2^(32-c). */
inline_always _Bool echoes_handshake(const struct tcp_sock *tcp, const struct served *served, __u32 w)
{
	__u32 echo = BPF_CORE_READ(tcp, rx_opt.rcv_tsecr) + BPF_CORE_READ(tcp, tsoffset),
	      bits = served->cookie_bits & 31;

	return w >> bits == (echo & 0xffffffff >> bits);
}

/* The server has sent nothing, and its client has echoed w: is that its SYN-ACK with the cookie? */
static __noinline int begins_with(const struct tcp_sock *tcp, const struct served *served, const struct flow *f,
				  __u32 w)
{
	if (!served || !f || BPF_CORE_READ(tcp, segs_out))
		return 0;
	return echoes_handshake(tcp, served, w) && mark_read_tag(served, f, w) >= 0;
}

/* Is this the first that the server sends, after a handshake from when SYN-ACKs were marked already? One that was not,
 * and was under way when the agent came, is among the exceptions. */
static __noinline int begins_now(const struct tcp_sock *tcp, const struct served *served, __u32 t, __u32 segments)
{
	__u64 now_ns = bpf_ktime_get_ns(); /* exact: connections come as soon as the agent is there */
	__u32 zero = 0, echo;
	const struct turn *last = bpf_map_lookup_elem(&last_turn, &zero);

	if (!served || !last || !last->since_ns || BPF_CORE_READ(tcp, segs_out) != (segments ? segments : 1))
		return 0;
	echo = handshake_echo(tcp, now_ns, t, served->cookie_bits);
	return echo && t - echo <= (now_ns - last->since_ns) / 1000000;
}
