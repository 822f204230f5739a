/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* inner.h - reads a packet from a socket, as far as the outer header and the prober need it. */
#pragma once

#include "wire/kernel.h"
#include "wire/gue.h"
#include "check/path.h"

/* The inner packet, as far as the outer header needs to know it. */
struct inner {
	__u32 length; /* of the packet */
	__u32 l4; /* offset of its TCP header */
	__u8 tos;
	__u8 transport;
	__u8 protocol; /* that stands for its family in an outer header */
};

/* Does the header that was read belong to a packet that this program has encapsulated? */
inline_always _Bool is_outer(struct __sk_buff *skb, const struct check_path *path, const struct inner *inner)
{
	struct udphdr udp;

	if (inner->transport != IPPROTO_UDP)
		return inner->transport != IPPROTO_TCP;
	return path->forward == CHECK_GUE && !bpf_skb_load_bytes(skb, inner->l4, &udp, sizeof(udp)) &&
	       udp.dest == bpf_htons(GUE_PORT);
}

/* Is the packet one from the socket? Those that come by again, on the device they were sent on to, are not. */
inline_always _Bool read_inner(struct __sk_buff *skb, const struct check_path *path, struct inner *inner)
{
	inner->length = skb->len - ETH_HLEN;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return 0;
		inner->tos = ip.tos;
		inner->transport = ip.protocol;
		inner->protocol = IPPROTO_IPIP;
		inner->l4 = ETH_HLEN + ip.ihl * 4;
		return ip.daddr == path->to[0] && !is_outer(skb, path, inner);
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return 0;
		inner->tos = ip.priority << 4 | ip.flow_lbl[0] >> 4;
		inner->transport = ip.nexthdr;
		inner->protocol = IPPROTO_IPV6;
		inner->l4 = ETH_HLEN + sizeof(ip);
		return !__builtin_memcmp(&ip.daddr, path->to, sizeof(path->to)) && !is_outer(skb, path, inner);
	}
	return 0;
}

/* The kernel echoes the server's timestamp, which carries the server's cookie. In all but SYNs it writes the option
 * first. */
inline_always void note_echo(struct __sk_buff *skb, struct check_path *path, const struct inner *inner)
{
	struct {
		struct tcphdr tcp;
		__be32 kind, value, echo;
	} head;

	if (bpf_skb_load_bytes(skb, inner->l4, &head, sizeof(head)) || head.tcp.syn || !head.tcp.ack ||
	    head.tcp.doff * 4 < sizeof(head) || head.kind != bpf_htonl(0x0101080a)) /* NOP NOP TS */
		return;
	path->echo = bpf_ntohl(head.echo);
	__sync_fetch_and_add(&path->echoes, 1);
}
