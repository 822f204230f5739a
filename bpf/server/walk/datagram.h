/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* datagram.h - as probe.h, of UDP: an answer, what ICMP says (RFC 792, RFC 4443), or the datagram itself leaves this
 * host.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "server/walk/probe.h"

volatile __u32 probing_datagrams; /* as probing */

struct ends {
	__be32 source[4], destination[4];
	__be16 source_port, destination_port; /* of ICMP: type and code; what is not used */
	__u32 l4;
	__u8 ipv6, protocol;
};

/* Reads the ends of an IP packet at an offset; 0: it has none that can be told. */
inline_always _Bool ends_read(struct ends *e, struct __sk_buff *skb, __u32 l3, _Bool ipv6)
{
	__be16 ports[2];

	__builtin_memset(e, 0, sizeof(*e));
	e->ipv6 = ipv6;
	if (ipv6) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
			return 0;
		__builtin_memcpy(e->source, &ip.saddr, 16);
		__builtin_memcpy(e->destination, &ip.daddr, 16);
		e->protocol = ip.nexthdr;
		e->l4 = l3 + sizeof(ip);
	} else {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)) || ip.frag_off & bpf_htons(IP_FRAGMENT_OFFSET))
			return 0;
		e->source[0] = ip.saddr;
		e->destination[0] = ip.daddr;
		e->protocol = ip.protocol;
		e->l4 = l3 + ip.ihl * 4;
	}
	if (bpf_skb_load_bytes(skb, e->l4, ports, sizeof(ports)))
		return 0;
	e->source_port = ports[0];
	e->destination_port = ports[1];
	return 1;
}

/* The note of the probe that a datagram between these ends is, or answers; 0: of none. */
inline_always __u32 *datagram_note(const struct ends *e, _Bool answers)
{
	struct flow_key key = {};

	key.service.protocol = IPPROTO_UDP;
	key.service.ipv6 = e->ipv6;
	__builtin_memcpy(key.service.address, answers ? e->source : e->destination, 16);
	__builtin_memcpy(key.client, answers ? e->destination : e->source, 16);
	key.service.port = answers ? e->source_port : e->destination_port;
	key.client_port = answers ? e->destination_port : e->source_port;
	return probe_note(&key);
}

/* Does it leave because of a probe by UDP? */
static __noinline int is_datagram_probe(struct __sk_buff *skb)
{
	_Bool ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	enum probe_fate said = PROBE_ANSWERED;
	struct ends e;
	__u32 *note;

	if ((!ipv6 && skb->protocol != bpf_htons(ETH_P_IP)) || !ends_read(&e, skb, ETH_HLEN, ipv6))
		return 0;
	if (e.protocol == (ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP)) {
		__u8 type = bpf_ntohs(e.source_port) >> 8, code = bpf_ntohs(e.source_port);

		if (type != (ipv6 ? ICMPV6_UNREACHABLE : ICMP_UNREACHABLE))
			return 0;
		said = code != (ipv6 ? ICMPV6_PORT_UNREACHABLE : ICMP_PORT_UNREACHABLE) ? PROBE_UNREACHABLE
		       : skb->ingress_ifindex						? PROBE_REFUSED
											: PROBE_REJECTED;
		if (!ends_read(&e, skb, e.l4 + sizeof(struct icmp_header), ipv6) || e.protocol != IPPROTO_UDP)
			return 0;
		note = datagram_note(&e, 0);
	} else if (e.protocol == IPPROTO_UDP) {
		note = datagram_note(&e, 1);
		if (!note) {
			note = datagram_note(&e, 0);
			said = PROBE_RETURNED;
		}
	} else {
		return 0;
	}
	if (note)
		probe_ends(note, said);
	return !!note;
}
