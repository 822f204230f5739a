/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* faults.h - what a link loses: packets at random, and the first copies of handshake segments. */
#pragma once

#include "wire/kernel.h"

#define LOSS_SCALE_PERMILLE 1000
#define FLOWS_MAX 65536

enum tcx_verdict { TCX_DROP_FRAME = 2, TCX_NEXT_PROGRAM = -1 };

/* What user space wants lost on this end of the link; all counters are frames. */
struct link_faults {
	__u32 drop_permille; /* of all IP packets, at random */
	__u32 drop_syns_per_flow; /* the first N copies of each SYN */
	__u32 drop_syn_acks_per_flow; /* the first N copies of each SYN-ACK */
	__u32 unused;
};
_Static_assert(sizeof(struct link_faults) == 16, "struct link_faults is shared with Go");

struct link_losses {
	__u64 dropped_random;
	__u64 dropped_syns;
	__u64 dropped_syn_acks;
};
_Static_assert(sizeof(struct link_losses) == 24, "struct link_losses is shared with Go");

struct handshake_key {
	__be32 source[4];
	__be32 destination[4];
	__be16 source_port;
	__be16 destination_port;
	__u32 is_syn_ack;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct link_faults);
} faults SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct link_losses);
} losses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FLOWS_MAX);
	__type(key, struct handshake_key);
	__type(value, __u32);
} handshakes SEC(".maps");

struct segment {
	struct handshake_key key;
	struct tcphdr tcp;
	__u8 is_ip;
	__u8 is_tcp;
};

static void parse(struct __sk_buff *skb, struct segment *segment)
{
	__u32 offset = ETH_HLEN;
	__u8 protocol = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, offset, &ip, sizeof(ip)) < 0)
			return;
		segment->key.source[0] = ip.saddr;
		segment->key.destination[0] = ip.daddr;
		protocol = ip.frag_off & bpf_htons(IP_FRAGMENT_OFFSET) ? 0 : ip.protocol;
		offset += ip.ihl * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, offset, &ip, sizeof(ip)) < 0)
			return;
		__builtin_memcpy(segment->key.source, &ip.saddr, sizeof(ip.saddr));
		__builtin_memcpy(segment->key.destination, &ip.daddr, sizeof(ip.daddr));
		protocol = ip.nexthdr;
		offset += sizeof(ip);
	} else {
		return;
	}
	/* Neighbour discovery is IP too; losing it tests the lab, not the load balancer. */
	segment->is_ip = protocol != IPPROTO_ICMPV6;
	if (protocol == IPPROTO_TCP && bpf_skb_load_bytes(skb, offset, &segment->tcp, sizeof(segment->tcp)) == 0)
		segment->is_tcp = 1;
}

/* Counts copies of one handshake segment and says whether this one is among the first `limit`. */
static int is_early_copy(const struct handshake_key *key, __u32 limit)
{
	__u32 first = 1, *copies = bpf_map_lookup_elem(&handshakes, key);

	if (!copies) {
		bpf_map_update_elem(&handshakes, key, &first, BPF_ANY);
		return limit > 0;
	}
	return __sync_fetch_and_add(copies, 1) < limit;
}

static int lose_handshake(struct segment *segment, const struct link_faults *fault, struct link_losses *loss)
{
	if (!segment->is_tcp || !segment->tcp.syn)
		return 0;
	segment->key.source_port = segment->tcp.source;
	segment->key.destination_port = segment->tcp.dest;
	segment->key.is_syn_ack = segment->tcp.ack;
	if (segment->tcp.ack) {
		if (!is_early_copy(&segment->key, fault->drop_syn_acks_per_flow))
			return 0;
		__sync_fetch_and_add(&loss->dropped_syn_acks, 1);
		return 1;
	}
	if (!is_early_copy(&segment->key, fault->drop_syns_per_flow))
		return 0;
	__sync_fetch_and_add(&loss->dropped_syns, 1);
	return 1;
}
