/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* resize.h - at tc: another packet behind outer headers that XDP has written. */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"

/* The outer headers, as XDP has written them, say how long what they carry is. 0, or an error. */
static __noinline int outer_resize(struct __sk_buff *skb, __u32 front, __u32 inner)
{
	__u32 at = sizeof(struct ethhdr), length;
	struct iphdr ip = {};
	__u8 protocol = 0;
	__be16 word = 0;

	bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &word, sizeof(word));
	if (word == bpf_htons(ETH_P_8021Q))
		at += sizeof(struct vlan_header);
	if (front <= at)
		return 0; /* forward: l2 */
	length = front - at + inner;
	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
		return -1;
	if (ip.version == 4) {
		protocol = ip.protocol;
		ip.tot_len = bpf_htons(length);
		ip.check = 0;
		ip.check = checksum_ipv4_header(&ip);
		if (bpf_skb_store_bytes(skb, at, &ip, sizeof(ip), 0))
			return -1;
		at += sizeof(ip);
		length -= sizeof(ip);
	} else {
		length -= sizeof(struct ipv6hdr);
		word = bpf_htons(length);
		if (bpf_skb_load_bytes(skb, at + offsetof(struct ipv6hdr, nexthdr), &protocol, sizeof(protocol)) ||
		    bpf_skb_store_bytes(skb, at + offsetof(struct ipv6hdr, payload_len), &word, sizeof(word), 0))
			return -1;
		at += sizeof(struct ipv6hdr);
	}
	if (protocol != IPPROTO_UDP)
		return 0;
	word = bpf_htons(length);
	return bpf_skb_store_bytes(skb, at + offsetof(struct udphdr, len), &word, sizeof(word), 0);
}
