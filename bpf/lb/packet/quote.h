/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* quote.h - the packet that an ICMP error quotes: server to client, so its source is the VIP (RFC 792, RFC 4443). */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"

inline_always _Bool is_icmp_error(const struct packet *p, const struct icmp_header *icmp)
{
	if (p->ipv6)
		return icmp->type >= ICMPV6_UNREACHABLE && icmp->type <= ICMPV6_PARAMETER_PROBLEM;
	return icmp->type == ICMP_UNREACHABLE || icmp->type == ICMP_TIME_EXCEEDED ||
	       icmp->type == ICMP_PARAMETER_PROBLEM;
}

inline_always _Bool is_icmp_echo(const struct packet *p, const struct icmp_header *icmp)
{
	return icmp->type == (p->ipv6 ? ICMPV6_ECHO_REQUEST : ICMP_ECHO_REQUEST) && !icmp->code;
}

/* Fill q with the quoted packet seen from the client: its source is the client. 0: not a quote that can be steered by.
 * An error need only quote eight bytes behind the IP header: q->header is 0 when the TCP header is cut short. */
inline_always _Bool parse_quote(struct packet *q, const struct packet *p, void *data, void *end)
{
	__be16 *ports;

	q->l3 = p->l4 + sizeof(struct icmp_header);
	q->ipv6 = p->ipv6;
	if (p->ipv6) {
		struct ipv6hdr *ip = packet_at(data, q->l3);

		if ((void *)(ip + 1) > end || ip->version != 6)
			return 0;
		__builtin_memcpy(q->source, &ip->daddr, 16);
		__builtin_memcpy(q->destination, &ip->saddr, 16);
		q->protocol = ip->nexthdr;
		q->l4 = q->l3 + sizeof(*ip);
		if (ip->nexthdr == IPPROTO_FRAGMENT) { /* only the first fragment has ports, and is as long as any */
			struct ipv6_fragment_header *fragment = (void *)(ip + 1);

			if ((void *)(fragment + 1) > end || fragment->offset_and_more & bpf_htons(0xfff8))
				return 0;
			q->protocol = fragment->nexthdr;
			q->l4 += sizeof(*fragment);
		}
	} else {
		struct iphdr *ip = packet_at(data, q->l3);

		if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl != 5 ||
		    ip->frag_off & bpf_htons(IP_FRAGMENT_OFFSET))
			return 0;
		q->source[0] = ip->daddr;
		q->destination[0] = ip->saddr;
		q->protocol = ip->protocol;
		q->l4 = q->l3 + sizeof(*ip);
	}
	ports = packet_at(data, q->l4);
	if ((q->protocol != IPPROTO_TCP && q->protocol != IPPROTO_UDP) || (void *)(ports + 4) > end)
		return 0;
	q->destination_port = ports[0];
	q->source_port = ports[1];
	q->tcp_flags = TCP_FLAG_ACK_BIT; /* never a new connection */
	if (q->protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = packet_at(data, q->l4);

		if ((void *)(tcp + 1) <= end && tcp->doff >= 5)
			q->header = tcp->doff * 4;
	}
	return 1;
}
