/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* vips.h - the VIPs that load balancers of this segment answer for. */
#pragma once

#include "wire/kernel.h"

#define SEGMENT_VIPS 4096
#define SEGMENT_PEERS 256

enum segment_state {
	SEGMENT_OTHER, /* another load balancer answers */
	SEGMENT_OWNED,
	SEGMENT_HELD, /* answered, unless another load balancer takes it */
};

#ifndef PACKET_OTHERHOST
#define PACKET_OTHERHOST 3 /* skb->pkt_type: for another host */
#endif

struct segment_key {
	__be32 address[4]; /* IPv4: in the first word */
	__u32 ipv6;
};

struct segment_vip {
	__u8 mac[ETH_ALEN]; /* of this load balancer */
	__u8 state; /* enum segment_state */
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

struct segment_mac {
	__u8 mac[ETH_ALEN];
	__u8 pad[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SEGMENT_PEERS);
	__type(key, struct segment_mac);
	__type(value, __u8);
} segment_peers SEC(".maps"); /* the other load balancers of the segment */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} segment_until SEC(".maps"); /* CLOCK_BOOTTIME, in ns: what is owned is held afterwards; 0: never */

/* Its daemon is gone, or has not asked the others yet: hosts are answered, load balancers are not. One that could carry
 * the VIP takes it then, and says so. Where there is none, it goes on. */
inline_always _Bool is_held(const struct segment_vip *vip)
{
	__u32 zero = 0;
	__u64 *until;

	if (vip->state != SEGMENT_OWNED)
		return vip->state == SEGMENT_HELD;
	until = bpf_map_lookup_elem(&segment_until, &zero);
	return until && *until && *until < bpf_ktime_get_boot_ns();
}

inline_always _Bool is_held_for(const struct segment_vip *vip, const __u8 *mac)
{
	struct segment_mac key = {};

	__builtin_memcpy(key.mac, mac, ETH_ALEN);
	return is_held(vip) && bpf_map_lookup_elem(&segment_peers, &key);
}

inline_always struct ethhdr answer_header(const __u8 *to, const struct segment_vip *vip, __be16 protocol)
{
	struct ethhdr header = { .h_proto = protocol };

	__builtin_memcpy(header.h_dest, to, ETH_ALEN);
	__builtin_memcpy(header.h_source, vip->mac, ETH_ALEN);
	return header;
}
