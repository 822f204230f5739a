/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* datagram.h - reads a datagram of a neighbour, and sends it back with other content. */
#pragma once

#include "wire/kernel.h"
#include "bfd/session.h"

struct datagram {
	struct bfd_key key;
	__u32 addresses, length; /* where they are, and of one: offsets with a link header in front */
	__u32 l4;
	__u8 ttl, protocol;
};

/* l2: how long what is in front of it is. */
inline_always _Bool read_ip(struct __sk_buff *skb, struct datagram *in, __u32 l2)
{
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, l2, &ip, sizeof(ip)) || ip.ihl != 5 ||
		    ip.frag_off & bpf_htons(IP_FRAGMENT_OFFSET | IP_MORE_FRAGMENTS))
			return 0;
		in->key.neighbor[0] = ip.saddr;
		in->addresses = ETH_HLEN + offsetof(struct iphdr, saddr);
		in->length = sizeof(ip.saddr);
		in->l4 = ETH_HLEN + sizeof(ip);
		in->ttl = ip.ttl;
		in->protocol = ip.protocol;
		return 1;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, l2, &ip, sizeof(ip)))
			return 0;
		__builtin_memcpy(in->key.neighbor, &ip.saddr, sizeof(ip.saddr));
		in->addresses = ETH_HLEN + offsetof(struct ipv6hdr, saddr);
		in->length = sizeof(ip.saddr);
		in->l4 = ETH_HLEN + sizeof(ip);
		in->ttl = ip.hop_limit;
		in->protocol = ip.nexthdr;
		return 1;
	}
	return 0;
}

/* Sends the packet back with another content. Swapped addresses leave all sums as they are. */
inline_always long send_back(struct __sk_buff *skb, const struct datagram *at, __be32 ports,
			     const struct bfd_packet *in, const struct bfd_packet *out)
{
	__be32 source[4] = {}, destination[4] = {}, back = bpf_htonl(BFD_SOURCE_PORT << 16 | BFD_PORT);
	__u8 macs[12], swapped[12];
	__s64 sum;

	if (at->length == 4) {
		if (bpf_skb_load_bytes(skb, at->addresses, source, 4) ||
		    bpf_skb_load_bytes(skb, at->addresses + 4, destination, 4) ||
		    bpf_skb_store_bytes(skb, at->addresses, destination, 4, 0) ||
		    bpf_skb_store_bytes(skb, at->addresses + 4, source, 4, 0))
			return -1;
	} else {
		if (bpf_skb_load_bytes(skb, at->addresses, source, 16) ||
		    bpf_skb_load_bytes(skb, at->addresses + 16, destination, 16) ||
		    bpf_skb_store_bytes(skb, at->addresses, destination, 16, 0) ||
		    bpf_skb_store_bytes(skb, at->addresses + 16, source, 16, 0))
			return -1;
	}
	if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)))
		return -1;
	__builtin_memcpy(swapped, macs + ETH_ALEN, ETH_ALEN);
	__builtin_memcpy(swapped + ETH_ALEN, macs, ETH_ALEN);
	sum = bpf_csum_diff(&ports, sizeof(ports), &back, sizeof(back), 0);
	sum = bpf_csum_diff((__be32 *)in, sizeof(*in), (__be32 *)out, sizeof(*out), sum);
	if (bpf_skb_store_bytes(skb, 0, swapped, sizeof(swapped), 0) ||
	    bpf_skb_store_bytes(skb, at->l4, &back, sizeof(back), 0) ||
	    bpf_skb_store_bytes(skb, at->l4 + sizeof(struct udphdr), out, sizeof(*out), 0))
		return -1;
	return bpf_l4_csum_replace(skb, at->l4 + offsetof(struct udphdr, check), 0, sum, BPF_F_MARK_MANGLED_0);
}
