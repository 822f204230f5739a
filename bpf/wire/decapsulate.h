/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* decapsulate.h - take a tunnel off: what the outer headers say must be true, and what they tell must not be lost. */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/parse.h"
#include "wire/tunnel.h"

/* Specification constants (RFC 3168) */
#define ECN_MASK 3
#define ECN_CE 3

/* Do the headers agree on where the inner packet ends? Load balancers leave nothing behind it. */
inline_always _Bool tunnel_lengths_agree(const struct tunnel *t, const struct packet *p, void *data, void *end)
{
	__u32 l4 = (t->l3 & 31) + (t->outer_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	struct udphdr *udp = data + l4;

	if (t->inner != l4 && !t->routed) { /* GUE */
		if ((void *)(udp + 1) > end || udp->len != bpf_htons(t->length))
			return 0;
	}
	return t->inner + p->length == l4 + t->length;
}

/* RFC 6040 4.2: congestion met outside the inner packet shows inside it. 0: it cannot show there. */
inline_always _Bool tunnel_copy_congestion(const struct tunnel *t, void *data, void *end)
{
	struct iphdr *ip = data + (t->inner & 255); /* masks: the verifier forgets what was stored */
	struct ipv6hdr *ip6 = (void *)ip;
	__be16 before;

	if ((t->tos & ECN_MASK) != ECN_CE || (void *)(ip + 1) > end)
		return 1;
	if (t->inner_ipv6) {
		if (!(ip6->flow_lbl[0] >> 4 & ECN_MASK))
			return 0;
		ip6->flow_lbl[0] |= ECN_CE << 4;
		return 1;
	}
	if (!(ip->tos & ECN_MASK))
		return 0;
	before = *(__be16 *)ip;
	ip->tos |= ECN_CE;
	checksum_replace16(&ip->check, before, *(__be16 *)ip);
	return 1;
}

/* Moves the Ethernet header and its tag to the inner packet. */
inline_always _Bool tunnel_strip(struct xdp_md *ctx, const struct tunnel *t)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 macs[3], tag = 0;
	_Bool tagged = t->l3 > sizeof(struct ethhdr);
	__be16 protocol = t->inner_ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);

	if (data + sizeof(struct ethhdr) + sizeof(struct vlan_header) > end)
		return 0;
	__builtin_memcpy(macs, data, sizeof(macs));
	if (tagged)
		__builtin_memcpy(&tag, data + sizeof(macs), sizeof(tag));
	if (bpf_xdp_adjust_head(ctx, (t->inner & 255) - (t->l3 & 31)))
		return 0;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + sizeof(struct ethhdr) + sizeof(struct vlan_header) > end)
		return 0;
	__builtin_memcpy(data, macs, sizeof(macs));
	data += sizeof(macs);
	if (tagged) {
		__builtin_memcpy(data, &tag, sizeof(tag));
		data += sizeof(tag);
	}
	*(__be16 *)data = protocol;
	return 1;
}
