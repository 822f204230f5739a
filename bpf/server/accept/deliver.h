/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* deliver.h - second chance (Beamer 4.3, SHELL III-A): a packet that no cookie steered is kept by the server that has
 * its connection; the others hand it to the stop written behind the outer header. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "wire/reversed.h"
#include "server/socket/socket.h"
#include "server/timestamp/translated.h"

inline_always struct bpf_sock *deliver_lookup(struct xdp_md *ctx, const __be32 client[4], const __be32 service[4],
					      __be16 client_port, __be16 service_port, _Bool ipv6)
{
	struct bpf_sock_tuple tuple = {};

	if (ipv6) {
		__builtin_memcpy(tuple.ipv6.saddr, client, 16);
		__builtin_memcpy(tuple.ipv6.daddr, service, 16);
		tuple.ipv6.sport = client_port;
		tuple.ipv6.dport = service_port;
		return bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	tuple.ipv4.saddr = client[0];
	tuple.ipv4.daddr = service[0];
	tuple.ipv4.sport = client_port;
	tuple.ipv4.dport = service_port;
	return bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
}

/* Does this listener wait for this ACK, because it answered the SYN with a SYN cookie? */
inline_always _Bool deliver_syn_cookie(struct bpf_sock *listener, const struct packet *p, void *data, void *end)
{
	struct tcphdr *tcp = data + (p->l4 & 255);
	void *ip = data + (p->l3 & 255);

	if ((void *)(tcp + 1) > end)
		return 0;
	if (p->ipv6)
		return ip + sizeof(struct ipv6hdr) <= end &&
		       !bpf_tcp_check_syncookie(listener, ip, sizeof(struct ipv6hdr), tcp, sizeof(*tcp));
	return ip + sizeof(struct iphdr) <= end &&
	       !bpf_tcp_check_syncookie(listener, ip, sizeof(struct iphdr), tcp, sizeof(*tcp));
}

inline_always _Bool deliver_is_syn(const struct packet *p)
{
	return p->protocol == IPPROTO_TCP && p->fragment == FRAGMENT_NONE &&
	       (p->tcp_flags & (TCP_FLAG_SYN_BIT | TCP_FLAG_ACK_BIT)) == TCP_FLAG_SYN_BIT;
}

inline_always _Bool deliver_tcp(struct xdp_md *ctx, const struct packet *p, void *data, void *end)
{
	struct bpf_sock *sk;
	_Bool mine = 1;

	if (deliver_is_syn(p))
		return 1;
	sk = deliver_lookup(ctx, p->source, p->destination, p->source_port, p->destination_port, p->ipv6);
	if (!sk)
		return is_translated_here(p);
	if (sk->state == SOCKET_LISTEN)
		mine = deliver_syn_cookie(sk, p, data, end) || is_translated_here(p);
	bpf_sk_release(sk);
	return mine;
}

/* An error about a packet that a server sent: the quoted packet says for which connection. */
inline_always _Bool deliver_icmp(struct xdp_md *ctx, const struct packet *p, void *data, void *end)
{
	struct icmp_header *icmp = data + (p->l4 & 255);
	struct packet quoted = { .l3 = (p->l4 & 255) + sizeof(*icmp) }, flow; /* as its client sends it */
	struct bpf_sock *sk;
	__be16 *ports;
	_Bool error, mine;

	if ((void *)(icmp + 1) > end)
		return 1;
	error = p->ipv6 ? icmp->type < ICMPV6_ECHO_REQUEST
			: icmp->type == ICMP_UNREACHABLE || icmp->type == ICMP_TIME_EXCEEDED ||
				  icmp->type == ICMP_PARAMETER_PROBLEM;
	if (!error || (p->ipv6 ? parse_ipv6(&quoted, data, end) : parse_ipv4(&quoted, data, end)) != PARSED)
		return 1;
	ports = data + (quoted.l4 & 255);
	if (quoted.protocol != IPPROTO_TCP || quoted.fragment == FRAGMENT_LATER || (void *)(ports + 2) > end)
		return 1;
	quoted.source_port = ports[0];
	quoted.destination_port = ports[1];
	reversed(&flow, &quoted);
	sk = deliver_lookup(ctx, flow.source, flow.destination, flow.source_port, flow.destination_port, flow.ipv6);
	mine = sk && sk->state != SOCKET_LISTEN;
	if (sk)
		bpf_sk_release(sk);
	return mine || is_translated_here(&flow);
}

/* Anything but TCP is kept: nothing here knows better. */
inline_always _Bool deliver_is_mine(struct xdp_md *ctx, const struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (p->fragment != FRAGMENT_NONE)
		return 1;
	if (p->protocol == IPPROTO_TCP)
		return deliver_tcp(ctx, p, data, end);
	if (p->protocol == (p->ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return deliver_icmp(ctx, p, data, end);
	return 1;
}
