/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* orders.h - frames by which lb orders lb_release, at tc of the same device, to send: at XDP one packet stays one. */
#pragma once

#include "wire/kernel.h"

/* EtherTypes for experiments (IEEE 802) */
#define ORDER_SEVERAL 0x88b5 /* several packets in place of this frame */
#define ORDER_DETOUR 0x88b6 /* this frame */

/* In place of the frame's source MAC, with ORDER_SEVERAL: send this packet in fragments. */
struct fragment_order {
	__u16 service, id; /* of the server */
	__u16 front; /* bytes in front of the packet's own IP header; 0: it is an order of lb/walk/hold.h */
};
_Static_assert(sizeof(struct fragment_order) == ETH_ALEN, "fragment_order");

/* What only XDP may tell tc. Behind a tag too: the kernel takes one off before tc sees the frame. */
inline_always _Bool is_order(const void *data, const void *end)
{
	const struct ethhdr *eth = data;
	const struct vlan_header *vlan = (const void *)(eth + 1);
	__be16 protocol;

	if ((void *)(eth + 1) > end)
		return 0;
	protocol = eth->h_proto;
	if ((protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD)) && (void *)(vlan + 1) <= end)
		protocol = vlan->protocol;
	return protocol == bpf_htons(ORDER_SEVERAL) || protocol == bpf_htons(ORDER_DETOUR);
}
