/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* socket.h - what the kernel's TCP sockets know about timestamps. No vmlinux.h: CO-RE finds the fields. */
#pragma once

#include "wire/kernel.h"
#include "server/agent.h"

enum { /* include/net/tcp_states.h */
       SOCKET_ESTABLISHED = 1,
       SOCKET_SYN_RECV = 3,
       SOCKET_FIN_WAIT1 = 4,
       SOCKET_FIN_WAIT2 = 5,
       SOCKET_TIME_WAIT = 6,
       SOCKET_CLOSE = 7,
       SOCKET_CLOSE_WAIT = 8,
       SOCKET_LAST_ACK = 9,
       SOCKET_LISTEN = 10,
       SOCKET_CLOSING = 11,
       SOCKET_NEW_SYN_RECV = 12,
       SOCKET_TYPE_STREAM = 1,
};

struct tcp_options_received {
	int ts_recent_stamp;
	__u32 rcv_tsecr;
	__u16 tstamp_ok : 1;
} __attribute__((preserve_access_index));

struct tcp_sock {
	__u32 rcv_nxt, snd_una;
	__u64 bytes_received, bytes_acked;
	__u32 tsoffset;
	__u32 segs_out;
	struct tcp_options_received rx_opt;
	__u8 tcp_usec_ts : 1; /* since 6.7 */
} __attribute__((preserve_access_index));

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;

struct sock_common {
	__be32 skc_rcv_saddr;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_rcv_saddr;
	__u32 skc_tw_rcv_nxt, skc_tw_snd_nxt; /* in TIME_WAIT */
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	__u32 sk_ack_backlog;
	__u16 sk_protocol;
} __attribute__((preserve_access_index));

struct inet_sock {
	__be16 inet_sport; /* stays when the socket has closed */
} __attribute__((preserve_access_index));

struct tcp_request_sock {
	__u32 rcv_nxt;
	__u32 ts_off;
	__u32 snt_tsval_first, snt_tsval_last; /* since 6.15 */
	_Bool req_usec_ts; /* since 6.7 */
} __attribute__((preserve_access_index));

struct tcp_timewait_sock {
	__u32 tw_ts_offset;
	__u32 tw_ts_recent; /* the client's newest TSval */
	int tw_ts_recent_stamp; /* 0: there was none */
} __attribute__((preserve_access_index));

/* The address of a socket as a plain number: the verifier allows no offset from a sock_common, and the typed casts
 * return NULL for the requests of MPTCP listeners. */
inline_always const void *socket_address(struct bpf_sock *sk)
{
	struct bpf_sock *pointer = sk;
	__u64 address = 0;

	bpf_probe_read_kernel(&address, sizeof(address), &pointer);
	return (const void *)address;
}

inline_always _Bool socket_uses_usec(const struct tcp_sock *tcp)
{
	return bpf_core_field_exists(tcp->tcp_usec_ts) && BPF_CORE_READ_BITFIELD_PROBED(tcp, tcp_usec_ts);
}

inline_always _Bool request_uses_usec(const struct tcp_request_sock *request)
{
	return bpf_core_field_exists(request->req_usec_ts) && BPF_CORE_READ(request, req_usec_ts);
}

/* The kernel's timestamp clock, 1 kHz, without the socket's offset: never ahead of it, and at most a tick behind. */
inline_always __u32 socket_clock_ms(void)
{
	return bpf_ktime_get_coarse_ns() / 1000000;
}

inline_always struct bpf_sock *socket_find(struct __sk_buff *skb, const __be32 client[4], const struct served_key *key,
					   __be16 client_port)
{
	struct bpf_sock_tuple tuple = {};

	if (key->ipv6) {
		__builtin_memcpy(tuple.ipv6.saddr, client, 16);
		__builtin_memcpy(tuple.ipv6.daddr, key->address, 16);
		tuple.ipv6.sport = client_port;
		tuple.ipv6.dport = key->port;
		return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	tuple.ipv4.saddr = client[0];
	tuple.ipv4.daddr = key->address[0];
	tuple.ipv4.sport = client_port;
	tuple.ipv4.dport = key->port;
	return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
}
