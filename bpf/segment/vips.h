/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* vips.h - the VIPs that load balancers of this segment answer for. */
#pragma once

#include "wire/kernel.h"

#define SEGMENT_VIPS 4096

#ifndef PACKET_OTHERHOST
#define PACKET_OTHERHOST 3 /* skb->pkt_type: for another host */
#endif

struct segment_key {
	__be32 address[4]; /* IPv4: in the first word */
	__u32 ipv6;
};

struct segment_vip {
	__u8 mac[ETH_ALEN]; /* of this load balancer */
	__u8 owned; /* 0: another one answers */
	__u8 pad;
	__u64 answered;
};
_Static_assert(sizeof(struct segment_vip) == 16, "struct segment_vip is shared with Go");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SEGMENT_VIPS);
	__type(key, struct segment_key);
	__type(value, struct segment_vip);
} segment_vips SEC(".maps");

inline_always struct ethhdr answer_header(const __u8 *to, const struct segment_vip *vip, __be16 protocol)
{
	struct ethhdr header = { .h_proto = protocol };

	__builtin_memcpy(header.h_dest, to, ETH_ALEN);
	__builtin_memcpy(header.h_source, vip->mac, ETH_ALEN);
	return header;
}
