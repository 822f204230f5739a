/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* translate.h - checks of VIPs that this host has itself, or has no route to: their sockets are connected to the
 * server's own address. On the way there the VIP takes its place, and back it takes the VIP's. */
#pragma once

#include "wire/kernel.h"
#include "wire/link_header.h"
#include "check/inner.h"
#include "check/path.h"

#define ANSWERS 16384

/* An answer as it comes in. IPv4 addresses are followed by zeros. */
struct answer_key {
	__be32 vip[4], client[4];
	__be16 vip_port, client_port;
	__u32 transport;
};
_Static_assert(sizeof(struct answer_key) == 40, "answer_key");

/* -> the server's own address */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, ANSWERS);
	__type(key, struct answer_key);
	__type(value, __be32[4]);
} answers SEC(".maps");

/* Puts an address in the place of another one, in the header at l3. incoming: of an answer. 0, or an error. */
inline_always long replace_address(struct __sk_buff *skb, const struct inner *inner, __u32 l3, __be32 *old, __be32 *new,
				   _Bool incoming)
{
	__u32 check = inner->l4 + (inner->transport == IPPROTO_TCP ? offsetof(struct tcphdr, check)
								   : offsetof(struct udphdr, check));
	__u64 flags = inner->transport == IPPROTO_TCP ? 0 : BPF_F_MARK_MANGLED_0;
	__u32 size = inner->protocol == IPPROTO_IPV6 ? 16 : 4, at = l3;
	__s64 sum;

	if (size == 16) {
		at += incoming ? offsetof(struct ipv6hdr, saddr) : offsetof(struct ipv6hdr, daddr);
		/* The sum over a whole packet that came in stays the same: the kernel may have it from the device. */
		if (!incoming)
			flags |= BPF_F_PSEUDO_HDR;
		sum = bpf_csum_diff(old, 16, new, 16, 0);
	} else {
		at += incoming ? offsetof(struct iphdr, saddr) : offsetof(struct iphdr, daddr);
		flags |= BPF_F_PSEUDO_HDR;
		sum = bpf_csum_diff(old, 4, new, 4, 0);
		if (bpf_l3_csum_replace(skb, l3 + offsetof(struct iphdr, check), *old, *new, 4))
			return -1;
	}
	if (bpf_l4_csum_replace(skb, check, 0, sum, flags))
		return -1;
	return size == 16 ? bpf_skb_store_bytes(skb, at, new, 16, 0) : bpf_skb_store_bytes(skb, at, new, 4, 0);
}

/* From the socket: 0, or the packet cannot be sent. */
inline_always long translate(struct __sk_buff *skb, struct check_path *path, const struct inner *inner)
{
	struct answer_key key = { .transport = inner->transport };
	__be32 to[4], vip[4];
	__be16 ports[2];

	__builtin_memcpy(to, path->to, sizeof(to));
	__builtin_memcpy(vip, path->vip, sizeof(vip));
	if (!__builtin_memcmp(to, vip, sizeof(to)))
		return 0;
	if (bpf_skb_load_bytes(skb, inner->l4, ports, sizeof(ports)))
		return -1;
	__builtin_memcpy(key.vip, vip, sizeof(key.vip));
	if (inner->protocol == IPPROTO_IPV6
		    ? bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, saddr), key.client, 16)
		    : bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct iphdr, saddr), key.client, 4))
		return -1;
	key.client_port = ports[0];
	key.vip_port = ports[1];
	if (bpf_map_update_elem(&answers, &key, to, BPF_ANY))
		return -1;
	return replace_address(skb, inner, ETH_HLEN, to, vip, 0);
}

/* To the socket, if it is an answer. Others stay as they are. */
inline_always void translate_back(struct __sk_buff *skb)
{
	struct inner inner = {};
	struct answer_key key = {};
	__be32 server[4];
	__be16 ports[2];
	const __be32 *known;
	__u32 l3 = link_header(skb, skb->protocol == bpf_htons(ETH_P_IP) ? 4 : 6);

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)) || ip.frag_off & bpf_htons(0x1fff))
			return;
		key.vip[0] = ip.saddr;
		key.client[0] = ip.daddr;
		inner.transport = ip.protocol;
		inner.protocol = IPPROTO_IPIP;
		inner.l4 = l3 + ip.ihl * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
			return;
		__builtin_memcpy(key.vip, &ip.saddr, 16);
		__builtin_memcpy(key.client, &ip.daddr, 16);
		inner.transport = ip.nexthdr;
		inner.protocol = IPPROTO_IPV6;
		inner.l4 = l3 + sizeof(ip);
	}
	if ((inner.transport != IPPROTO_TCP && inner.transport != IPPROTO_UDP) ||
	    bpf_skb_load_bytes(skb, inner.l4, ports, sizeof(ports)))
		return;
	key.transport = inner.transport;
	key.vip_port = ports[0];
	key.client_port = ports[1];
	known = bpf_map_lookup_elem(&answers, &key);
	if (!known)
		return;
	__builtin_memcpy(server, known, sizeof(server));
	replace_address(skb, &inner, l3, key.vip, server, 1);
}
