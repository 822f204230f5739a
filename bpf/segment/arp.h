/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* arp.h - who has a VIP, in IPv4 (RFC 826). */
#pragma once

#include "wire/kernel.h"
#include "segment/vips.h"

#define ARP_ETHERNET 1
#define ARP_REQUEST 1
#define ARP_REPLY 2

struct arp {
	__be16 hardware, protocol;
	__u8 hardware_length, protocol_length;
	__be16 operation;
	__u8 sender_mac[ETH_ALEN];
	__be32 sender;
	__u8 target_mac[ETH_ALEN];
	__be32 target;
} __attribute__((packed));
_Static_assert(sizeof(struct arp) == 28, "RFC 826");

inline_always _Bool is_request(const struct arp *arp)
{
	return arp->hardware == bpf_htons(ARP_ETHERNET) && arp->protocol == bpf_htons(ETH_P_IP) &&
	       arp->hardware_length == ETH_ALEN && arp->protocol_length == 4 &&
	       arp->operation == bpf_htons(ARP_REQUEST);
}

/* ARP has no IP header that generic XDP could lose track of: its Ethernet header is always there (link_header.h). */
inline_always int answer_arp(struct __sk_buff *skb)
{
	struct segment_key key = {};
	struct segment_vip *vip;
	struct ethhdr header;
	struct arp arp;

	if (bpf_skb_load_bytes_relative(skb, 0, &arp, sizeof(arp), BPF_HDR_START_NET) || !is_request(&arp))
		return TC_CONTINUE;
	key.address[0] = arp.target;
	vip = bpf_map_lookup_elem(&segment_vips, &key);
	if (!vip)
		return TC_CONTINUE;
	if (arp.sender == arp.target) { /* an announcement is no request */
		if (is_held_for(vip, arp.sender_mac))
			vip->state = SEGMENT_OTHER;
		return TC_CONTINUE;
	}
	if (vip->state == SEGMENT_OTHER || (!arp.sender && is_held_for(vip, arp.sender_mac)))
		return TC_DROP;
	header = answer_header(arp.sender_mac, vip, bpf_htons(ETH_P_ARP));
	arp.operation = bpf_htons(ARP_REPLY);
	__builtin_memcpy(arp.target_mac, arp.sender_mac, ETH_ALEN);
	arp.target = arp.sender;
	__builtin_memcpy(arp.sender_mac, vip->mac, ETH_ALEN);
	arp.sender = key.address[0];
	if (bpf_skb_store_bytes(skb, 0, &header, sizeof(header), 0) ||
	    bpf_skb_store_bytes(skb, sizeof(header), &arp, sizeof(arp), 0))
		return TC_DROP;
	__sync_fetch_and_add(&vip->answered, 1);
	return bpf_redirect(skb->ifindex, 0);
}
