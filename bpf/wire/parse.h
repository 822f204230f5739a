/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* parse.h - Ethernet, at most one VLAN tag, IPv4 without options or IPv6, TCP or UDP or ICMP, into a struct packet. */
#pragma once

#include "wire/kernel.h"

enum fragment { FRAGMENT_NONE, FRAGMENT_FIRST, FRAGMENT_LATER };

enum parse_result {
	PARSED,
	PARSE_NOT_IP,
	PARSE_UNSUPPORTED,
	PARSE_MALFORMED,
};

struct packet {
	__be32 source[4]; /* IPv4: the first word, the rest is 0 */
	__be32 destination[4];
	__be16 source_port, destination_port; /* 0 for ICMP and for later fragments */
	__u32 fragment_id;
	__u16 l3, l4; /* offsets from the start of the frame */
	__u16 length; /* of the IP packet, header included */
	__u16 header; /* length of the TCP header */
	__u8 ipv6;
	__u8 protocol;
	__u8 fragment;
	__u8 tcp_flags;
	__u8 tos; /* or traffic class */
	__u8 may_fragment; /* IPv4 without Don't Fragment */
};

/* Headers begin within the first 255 bytes; the verifier wants to see it. */
inline_always void *packet_at(void *data, __u16 offset)
{
	return data + (offset & 0xff);
}

#define TCP_FLAG_FIN_BIT 0x01
#define TCP_FLAG_SYN_BIT 0x02
#define TCP_FLAG_RST_BIT 0x04
#define TCP_FLAG_ACK_BIT 0x10

inline_always enum parse_result parse_ipv4(struct packet *p, void *data, void *end)
{
	struct iphdr *ip = packet_at(data, p->l3);
	__u16 fragment;

	if ((void *)(ip + 1) > end)
		return PARSE_MALFORMED;
	if (ip->version != 4 || ip->ihl < 5)
		return PARSE_MALFORMED;
	p->source[0] = ip->saddr;
	p->destination[0] = ip->daddr;
	p->protocol = ip->protocol;
	p->tos = ip->tos;
	p->length = bpf_ntohs(ip->tot_len);
	p->l4 = p->l3 + sizeof(*ip);
	if (ip->ihl != 5)
		return PARSE_UNSUPPORTED;
	fragment = bpf_ntohs(ip->frag_off);
	p->may_fragment = !(fragment & IP_DONT_FRAGMENT);
	if (fragment & (IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET)) {
		p->fragment = fragment & IP_FRAGMENT_OFFSET ? FRAGMENT_LATER : FRAGMENT_FIRST;
		p->fragment_id = ip->id;
	}
	return PARSED;
}

inline_always enum parse_result parse_ipv6(struct packet *p, void *data, void *end)
{
	struct ipv6hdr *ip = packet_at(data, p->l3);

	if ((void *)(ip + 1) > end || ip->version != 6)
		return PARSE_MALFORMED;
	__builtin_memcpy(p->source, &ip->saddr, 16);
	__builtin_memcpy(p->destination, &ip->daddr, 16);
	p->ipv6 = 1;
	p->protocol = ip->nexthdr;
	p->tos = ip->priority << 4 | ip->flow_lbl[0] >> 4;
	p->length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	p->l4 = p->l3 + sizeof(*ip);
	if (ip->nexthdr == IPPROTO_FRAGMENT) {
		struct ipv6_fragment_header *fragment = (void *)(ip + 1);

		if ((void *)(fragment + 1) > end)
			return PARSE_MALFORMED;
		p->protocol = fragment->nexthdr;
		p->fragment_id = fragment->identification;
		p->fragment = fragment->offset_and_more & bpf_htons(0xfff8) ? FRAGMENT_LATER : FRAGMENT_FIRST;
		p->l4 += sizeof(*fragment);
	}
	return PARSED;
}

inline_always enum parse_result parse_ports(struct packet *p, void *data, void *end)
{
	void *l4 = packet_at(data, p->l4);

	if (p->fragment == FRAGMENT_LATER)
		return PARSED;
	if (p->protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;

		if ((void *)(tcp + 1) > end || tcp->doff < 5)
			return PARSE_MALFORMED;
		p->header = tcp->doff * 4;
		if (p->l4 - p->l3 + p->header > p->length || l4 + p->header > end)
			return PARSE_MALFORMED;
		p->source_port = tcp->source;
		p->destination_port = tcp->dest;
		p->tcp_flags = ((__u8 *)tcp)[13];
		return PARSED;
	}
	if (p->protocol == IPPROTO_UDP) {
		struct udphdr *udp = l4;

		if ((void *)(udp + 1) > end || p->l4 - p->l3 + sizeof(*udp) > p->length)
			return PARSE_MALFORMED;
		p->source_port = udp->source;
		p->destination_port = udp->dest;
		return PARSED;
	}
	if (p->protocol == (p->ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP)) {
		if (l4 + sizeof(struct icmp_header) > end || p->l4 - p->l3 + sizeof(struct icmp_header) > p->length)
			return PARSE_MALFORMED;
		return PARSED;
	}
	return PARSE_UNSUPPORTED;
}

/* A packet may go on beyond the linear part of its frame. */
inline_always _Bool frame_holds(struct xdp_md *ctx, void *data, void *end, __u32 length)
{
	return length <= end - data || length <= bpf_xdp_get_buff_len(ctx);
}

inline_always enum parse_result parse_frame(struct packet *p, struct xdp_md *ctx, void *data, void *end)
{
	struct ethhdr *eth = data;
	enum parse_result result;
	__be16 protocol;

	if ((void *)(eth + 1) > end)
		return PARSE_NOT_IP;
	protocol = *(__be16 *)(data + offsetof(struct ethhdr, h_proto));
	p->l3 = sizeof(*eth);
	if (protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD)) {
		struct vlan_header *vlan = (void *)(eth + 1);

		if ((void *)(vlan + 1) > end)
			return PARSE_NOT_IP;
		protocol = vlan->protocol;
		p->l3 += sizeof(*vlan);
	}
	if (protocol == bpf_htons(ETH_P_IP))
		result = parse_ipv4(p, data, end);
	else if (protocol == bpf_htons(ETH_P_IPV6))
		result = parse_ipv6(p, data, end);
	else
		return PARSE_NOT_IP;
	if (result != PARSED)
		return result;
	if (p->l4 - p->l3 > p->length || !frame_holds(ctx, data, end, p->l3 + p->length))
		return PARSE_MALFORMED;
	return parse_ports(p, data, end);
}
