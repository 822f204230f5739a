/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* solicitation.h - who has a VIP, in IPv6 (RFC 4861 4.3, 4.4, 7.1.1, 7.2.4). */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/link_header.h"
#include "segment/vips.h"

#define ICMPV6_SOLICITATION 135
#define ICMPV6_ADVERTISEMENT 136
#define ADVERTISEMENT_SOLICITED 0x40000000
#define ADVERTISEMENT_OVERRIDE 0x20000000
#define OPTION_SOURCE_LINK 1
#define OPTION_TARGET_LINK 2

struct neighbor_message {
	__u8 type, code;
	__sum16 checksum;
	__be32 flags;
	struct in6_addr target;
};

struct neighbor_answer {
	struct ipv6hdr ip;
	struct neighbor_message message;
	__u8 option, option_words, mac[ETH_ALEN];
};
_Static_assert(sizeof(struct neighbor_answer) == 72, "RFC 4861 4.4");

struct neighbor_link {
	__u8 option, option_words, mac[ETH_ALEN];
};

/* Of a host on the link: nothing that a router has forwarded has this hop limit. */
inline_always _Bool is_neighbor_message(const struct ipv6hdr *ip, const struct neighbor_message *m)
{
	return ip->hop_limit == 255 && (m->type == ICMPV6_SOLICITATION || m->type == ICMPV6_ADVERTISEMENT) &&
	       !m->code && bpf_ntohs(ip->payload_len) >= sizeof(*m);
}

/* Load balancers say first which Ethernet address they have. */
inline_always _Bool is_held_for_sender(struct __sk_buff *skb, __u32 l2, const struct segment_vip *vip,
				       const struct neighbor_answer *in)
{
	struct neighbor_link link;
	__u8 option = in->message.type == ICMPV6_SOLICITATION ? OPTION_SOURCE_LINK : OPTION_TARGET_LINK;

	return bpf_ntohs(in->ip.payload_len) >= sizeof(in->message) + sizeof(link) &&
	       !bpf_skb_load_bytes(skb, l2 + offsetof(struct neighbor_answer, option), &link, sizeof(link)) &&
	       link.option == option && link.option_words == 1 && is_held_for(vip, link.mac);
}

inline_always __sum16 checksum_of(struct neighbor_answer *answer)
{
	__be32 rest[2] = { answer->ip.payload_len, bpf_htonl(IPPROTO_ICMPV6) }; /* in a pseudo header: as sums go */
	__s64 sum = bpf_csum_diff(0, 0, rest, sizeof(rest), 0);

	sum = bpf_csum_diff(0, 0, (__be32 *)&answer->ip.saddr, 32, sum);
	sum = bpf_csum_diff(0, 0, (__be32 *)&answer->message, sizeof(*answer) - sizeof(answer->ip), sum);
	return checksum_fold(sum);
}

/* To who asked; who asks from no address, as before it takes one (RFC 4862 5.4), is answered with all others. */
inline_always void write_answer(struct neighbor_answer *answer, const struct segment_vip *vip,
				const struct in6_addr *from)
{
	_Bool unspecified = !(from->s6_addr32[0] | from->s6_addr32[1] | from->s6_addr32[2] | from->s6_addr32[3]);

	answer->ip.version = 6;
	answer->ip.payload_len = bpf_htons(sizeof(*answer) - sizeof(answer->ip));
	answer->ip.nexthdr = IPPROTO_ICMPV6;
	answer->ip.hop_limit = 255;
	answer->ip.saddr = answer->message.target;
	answer->ip.daddr = *from;
	if (unspecified) {
		answer->ip.daddr.s6_addr32[0] = bpf_htonl(0xff020000);
		answer->ip.daddr.s6_addr32[3] = bpf_htonl(1);
	}
	answer->message.type = ICMPV6_ADVERTISEMENT;
	answer->message.code = 0;
	answer->message.checksum = 0;
	answer->message.flags = bpf_htonl(ADVERTISEMENT_OVERRIDE | (unspecified ? 0 : ADVERTISEMENT_SOLICITED));
	answer->option = OPTION_TARGET_LINK;
	answer->option_words = 1;
	__builtin_memcpy(answer->mac, vip->mac, ETH_ALEN);
	answer->message.checksum = checksum_of(answer);
}

inline_always int answer_solicitation(struct __sk_buff *skb)
{
	static const __u8 all_nodes[ETH_ALEN] = { 0x33, 0x33, 0, 0, 0, 1 };
	struct neighbor_answer answer = {};
	struct segment_key key = { .ipv6 = 1 };
	__u32 l2 = link_header(skb, 6);
	struct segment_vip *vip;
	struct ethhdr header;
	struct in6_addr from;
	_Bool held;

	if (bpf_skb_load_bytes(skb, l2, &answer.ip, sizeof(answer.ip)) || answer.ip.nexthdr != IPPROTO_ICMPV6 ||
	    bpf_skb_load_bytes(skb, l2 + sizeof(answer.ip), &answer.message, sizeof(answer.message)) ||
	    !is_neighbor_message(&answer.ip, &answer.message))
		return TC_CONTINUE;
	__builtin_memcpy(key.address, &answer.message.target, sizeof(key.address));
	vip = bpf_map_lookup_elem(&segment_vips, &key);
	if (!vip || vip->state == SEGMENT_OTHER)
		return TC_CONTINUE; /* the stack has no answer for an address of another device */
	held = is_held_for_sender(skb, l2, vip, &answer);
	if (answer.message.type == ICMPV6_ADVERTISEMENT) {
		if (held)
			vip->state = SEGMENT_OTHER;
		return TC_CONTINUE;
	}
	if (held)
		return TC_DROP;
	if (link_header_restore(skb) || bpf_skb_load_bytes(skb, 0, &header, sizeof(header)))
		return TC_DROP;
	from = answer.ip.saddr;
	write_answer(&answer, vip, &from);
	header = answer_header(answer.ip.daddr.s6_addr[0] == 0xff ? all_nodes : header.h_source, vip,
			       bpf_htons(ETH_P_IPV6));
	if (bpf_skb_change_tail(skb, sizeof(header) + sizeof(answer), 0) ||
	    bpf_skb_store_bytes(skb, 0, &header, sizeof(header), 0) ||
	    bpf_skb_store_bytes(skb, sizeof(header), &answer, sizeof(answer), 0))
		return TC_DROP;
	__sync_fetch_and_add(&vip->answered, 1);
	return bpf_redirect(skb->ifindex, 0);
}
