/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* tunnel.h - recognise IPIP (RFC 2003, 2473, 4213), GUE (draft-ietf-intarea-gue, variant 0) and SRv6 (RFC 8754). */
#pragma once

#include "wire/kernel.h"
#include "wire/gue.h"
#include "wire/srh.h"

struct tunnel {
	__be32 source[4]; /* IPv4: mapped, so that it is no IPv6 source's (RFC 4291 2.5.5.2) */
	__be32 destination[4];
	__u16 l3; /* offset of the outer IP header */
	__u16 stops; /* offset of struct gue_stops or struct srh, 0: none */
	__u16 next; /* with stops left: offset of the next one's address */
	__u16 inner; /* offset of the inner IP header */
	__u16 length; /* of what follows the outer IP header, as that says */
	__u8 outer_ipv6, inner_ipv6;
	__u8 routed; /* the stops are segments: each lies before the one that comes before it */
	__u8 tos; /* of the outer header */
	__u8 column; /* with stops: how many servers the packet was to try before this one */
	__u8 left; /* stops that are left */
};

enum tunnel_search { TUNNEL_ABSENT, TUNNEL_FOUND, TUNNEL_MALFORMED };

inline_always enum tunnel_search tunnel_parse_gue(struct tunnel *t, void *data, void *end, __u32 l4)
{
	struct udphdr *udp = data + l4;
	struct gue_header *gue = (void *)(udp + 1);
	struct gue_stops *stops = (void *)(gue + 1);
	__u32 words;

	if ((void *)(udp + 1) > end || udp->dest != bpf_htons(GUE_PORT))
		return TUNNEL_ABSENT;
	if ((void *)(gue + 1) > end || gue->version_control_words & GUE_VERSION_AND_CONTROL || gue->flags)
		return TUNNEL_MALFORMED;
	if (gue->protocol != IPPROTO_IPIP && gue->protocol != IPPROTO_IPV6)
		return TUNNEL_MALFORMED;
	t->inner_ipv6 = gue->protocol == IPPROTO_IPV6;
	t->inner = l4 + sizeof(*udp) + sizeof(*gue);
	words = gue->version_control_words & GUE_HEADER_WORDS;
	if (!words)
		return TUNNEL_FOUND;
	if ((void *)(stops + 1) > end || stops->type != GUE_PRIVATE_STOPS || stops->count > STOPS_MAX ||
	    words * 4 != gue_stops_length(stops->count ?: 1, t->outer_ipv6))
		return TUNNEL_MALFORMED;
	t->stops = t->inner;
	t->next = t->stops + sizeof(*stops) + stops->next * (t->outer_ipv6 ? 16 : 4);
	t->column = stops->next;
	t->left = stops->next < stops->count ? stops->count - stops->next : 0;
	t->inner += words * 4;
	return TUNNEL_FOUND;
}

/* What load balancers write: no TLVs, and a whole packet inside. Flags and tag are ignored (RFC 8754 2). */
inline_always enum tunnel_search tunnel_parse_srh(struct tunnel *t, void *data, void *end, __u32 at)
{
	struct srh *srh = data + at;

	if ((void *)(srh + 1) > end || srh->type != SRH_TYPE)
		return TUNNEL_ABSENT;
	if ((srh->nexthdr != IPPROTO_IPIP && srh->nexthdr != IPPROTO_IPV6) || srh->last > STOPS_MAX ||
	    srh->left > srh->last || srh->length != (srh->last + 1) * 2)
		return TUNNEL_MALFORMED;
	t->inner_ipv6 = srh->nexthdr == IPPROTO_IPV6;
	t->routed = 1;
	t->stops = at;
	t->column = srh->last - srh->left;
	t->left = srh->left;
	t->next = at + sizeof(*srh) + srh->left * 16 - 16;
	t->inner = at + sizeof(*srh) + (srh->last + 1) * 16;
	return TUNNEL_FOUND;
}

inline_always enum tunnel_search tunnel_parse_l4(struct tunnel *t, void *data, void *end, __u8 protocol, __u32 l4)
{
	if (protocol == IPPROTO_UDP)
		return tunnel_parse_gue(t, data, end, l4);
	if (protocol != IPPROTO_IPIP && protocol != IPPROTO_IPV6)
		return TUNNEL_ABSENT;
	t->inner_ipv6 = protocol == IPPROTO_IPV6;
	t->inner = l4;
	return TUNNEL_FOUND;
}

/* No packet comes from a mapped address; the stack drops such, too. */
inline_always _Bool is_mapped(const __be32 address[4])
{
	return !address[0] && !address[1] && address[2] == bpf_htonl(0xffff);
}

/* Looks no further into the frames of others than it must. segments: a routing header is a tunnel, too. */
inline_always enum tunnel_search tunnel_parse(struct tunnel *t, void *data, void *end, _Bool segments)
{
	struct ethhdr *eth = data;
	struct vlan_header *vlan = (void *)(eth + 1);
	struct iphdr *ip;
	enum tunnel_search search;
	struct ipv6hdr *ip6;
	__be16 protocol;

	if ((void *)(eth + 1) > end)
		return TUNNEL_ABSENT;
	protocol = eth->h_proto;
	t->l3 = sizeof(*eth);
	if (protocol == bpf_htons(ETH_P_8021Q)) {
		if ((void *)(vlan + 1) > end)
			return TUNNEL_ABSENT;
		protocol = vlan->protocol;
		t->l3 += sizeof(*vlan);
	}
	ip = data + t->l3;
	ip6 = data + t->l3;
	if (protocol == bpf_htons(ETH_P_IP)) {
		if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl != 5 ||
		    ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET))
			return TUNNEL_ABSENT;
		t->source[2] = bpf_htonl(0xffff);
		t->source[3] = ip->saddr;
		t->destination[0] = ip->daddr;
		t->length = bpf_ntohs(ip->tot_len) - sizeof(*ip);
		t->tos = ip->tos;
		return tunnel_parse_l4(t, data, end, ip->protocol, t->l3 + sizeof(*ip));
	}
	if (protocol != bpf_htons(ETH_P_IPV6) || (void *)(ip6 + 1) > end || ip6->version != 6)
		return TUNNEL_ABSENT;
	t->outer_ipv6 = 1;
	__builtin_memcpy(t->source, &ip6->saddr, 16);
	__builtin_memcpy(t->destination, &ip6->daddr, 16);
	t->length = bpf_ntohs(ip6->payload_len);
	t->tos = ip6->priority << 4 | ip6->flow_lbl[0] >> 4;
	if (segments && ip6->nexthdr == IPPROTO_ROUTING)
		search = tunnel_parse_srh(t, data, end, t->l3 + sizeof(*ip6));
	else
		search = tunnel_parse_l4(t, data, end, ip6->nexthdr, t->l3 + sizeof(*ip6));
	return search == TUNNEL_FOUND && is_mapped(t->source) ? TUNNEL_MALFORMED : search;
}
