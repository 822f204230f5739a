/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* live.h - count the connections of services that live, where the kernel's TCP changes their state. */
#pragma once

#include "wire/kernel.h"
#include "wire/tunnel.h"
#include "server/agent.h"
#include "server/socket/socket.h"
#include "server/accept/acceptance.h"

const volatile __u32
	counted_namespace; /* inode number of the network namespace; other ones' connections are not counted */

/* As the sampler of load does (internal/linux/load). Sockets in FIN_WAIT2 are left out: most are remains of closed
 * connections. */
inline_always _Bool is_live(int state)
{
	return 1u << (state & 31) & (1u << SOCKET_ESTABLISHED | 1u << SOCKET_FIN_WAIT1 | 1u << SOCKET_CLOSE_WAIT |
				     1u << SOCKET_LAST_ACK | 1u << SOCKET_CLOSING);
}

/* The service whose address a socket has. */
inline_always void live_key(struct served_key *key, const struct sock *sk)
{
	const struct sock_common *common = &sk->__sk_common;
	struct in6_addr address = {};

	key->protocol = IPPROTO_TCP;
	key->port = BPF_CORE_READ((const struct inet_sock *)sk, inet_sport);
	if (common->skc_family == AF_INET6) {
		BPF_CORE_READ_INTO(&address, sk, __sk_common.skc_v6_rcv_saddr);
		if (!is_mapped(address.in6_u.u6_addr32)) {
			__builtin_memcpy(key->address, &address, sizeof(key->address));
			key->ipv6 = 1;
			return;
		}
	}
	key->address[0] = common->skc_rcv_saddr;
}

inline_always void live_count(const struct sock *sk, int before, int after)
{
	struct served_key key = {};
	const struct served *served;
	__u32 at;
	__s64 *live;

	if (is_live(before) == is_live(after) || sk->sk_protocol != IPPROTO_TCP ||
	    sk->__sk_common.skc_net.net->ns.inum != counted_namespace)
		return;
	live_key(&key, sk);
	served = served_find(&key);
	if (!served || !served->acceptance)
		return;
	at = served->acceptance;
	live = bpf_map_lookup_elem(&live_connections, &at);
	if (live)
		__sync_fetch_and_add(live, is_live(after) ? 1 : -1);
}
