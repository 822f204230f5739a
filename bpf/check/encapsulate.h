/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* encapsulate.h - encapsulates a check as the load balancer does: IP in IP or GUE. */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/gue.h"
#include "check/inner.h"
#include "check/path.h"

/* Writes the outer headers of the path into the room made for them. */
inline_always long write_outer_ipv4(struct __sk_buff *skb, const struct check_path *path, const struct inner *inner,
				    __u8 protocol, __u32 outer)
{
	struct iphdr ip;

	write_ipv4_header(&ip, inner->tos, inner->length + outer, 0, 1, protocol, path->source[0], path->address[0]);
	return bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0);
}

inline_always long write_outer_ipv6(struct __sk_buff *skb, const struct check_path *path, const struct inner *inner,
				    __u8 protocol, __u32 outer, __u16 entropy)
{
	struct ipv6hdr ip = {};

	*(__be32 *)&ip = bpf_htonl(6u << 28 | (__u32)inner->tos << 20 | entropy);
	ip.payload_len = bpf_htons(inner->length + outer - sizeof(ip));
	ip.nexthdr = protocol;
	ip.hop_limit = 64;
	__builtin_memcpy(&ip.saddr, path->source, 16);
	__builtin_memcpy(&ip.daddr, path->address, 16);
	return bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0);
}

inline_always long write_gue(struct __sk_buff *skb, const struct inner *inner, __u32 ip_length, __u16 entropy)
{
	struct {
		struct udphdr udp;
		struct gue_header gue;
	} headers = {
		.udp.source = bpf_htons(GUE_SOURCE_PORT_BASE | (entropy & 0x3fff)),
		.udp.dest = bpf_htons(GUE_PORT),
		.udp.len = bpf_htons(inner->length +
				     sizeof(headers)), /* no checksum: RFC 6935, as lb/send/encapsulate.h */
		.gue.protocol = inner->protocol,
	};

	return bpf_skb_store_bytes(skb, ETH_HLEN + ip_length, &headers, sizeof(headers), 0);
}

/* 0, or the packet cannot be sent. */
inline_always long encapsulate(struct __sk_buff *skb, const struct check_path *path, const struct inner *inner)
{
	__u32 ip_length = path->outer_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr), outer = ip_length;
	/* Segments keep their size: the prober has made it small enough. */
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO |
		      (path->outer_ipv6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4);
	__be16 protocol = path->outer_ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	__u16 entropy = bpf_get_hash_recalc(skb) >> 16;
	_Bool gue = path->forward == CHECK_GUE;

	if (gue) {
		outer += sizeof(struct udphdr) + sizeof(struct gue_header);
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	}
	if (bpf_skb_adjust_room(skb, outer, BPF_ADJ_ROOM_MAC, flags))
		return -1;
	if (gue && write_gue(skb, inner, ip_length, entropy))
		return -1;
	if (bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &protocol, sizeof(protocol), 0))
		return -1;
	return path->outer_ipv6
		       ? write_outer_ipv6(skb, path, inner, gue ? IPPROTO_UDP : inner->protocol, outer, entropy)
		       : write_outer_ipv4(skb, path, inner, gue ? IPPROTO_UDP : inner->protocol, outer);
}
