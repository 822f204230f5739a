/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* peer_frame.h - frames that carry a message of another load balancer: is it one, what does it say, and which flow is
 * it about? */
#pragma once

#include "wire/kernel.h"
#include "wire/gue.h"
#include "wire/parse.h"
#include "wire/reversed.h"
#include "wire/siphash.h"
#include "wire/tunnel.h"
#include "lb/packet/peer_message.h"
#include "lb/packet/quote.h"
#include "lb/state/functions.h"
#include "lb/state/ring.h"

/* Is the frame a message to this node? Looks no further into others than it must. */
inline_always _Bool is_for_peer(const void *data, const void *end)
{
	const struct ethhdr *eth = data;
	const struct vlan_header *vlan = data + sizeof(*eth);
	const void *ip = eth + 1;
	const struct udphdr *udp;
	__be16 protocol;

	if ((void *)(vlan + 1) > end)
		return 0;
	protocol = *(const __be16 *)(data + offsetof(struct ethhdr, h_proto));
	if (protocol == bpf_htons(ETH_P_8021Q)) {
		protocol = vlan->protocol;
		ip = vlan + 1;
	}
	if (protocol == bpf_htons(ETH_P_IP)) {
		const struct iphdr *ip4 = ip;

		udp = (const void *)(ip4 + 1);
		return (const void *)(udp + 1) <= end && ip4->version == 4 && ip4->ihl == 5 &&
		       ip4->protocol == IPPROTO_UDP &&
		       !(ip4->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET)) &&
		       udp->dest == bpf_htons(GUE_PORT) && ip4->daddr == replica_address[0];
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *ip6 = ip;

		udp = (const void *)(ip6 + 1);
		return (const void *)(udp + 1) <= end && ip6->version == 6 && ip6->nexthdr == IPPROTO_UDP &&
		       udp->dest == bpf_htons(GUE_PORT) &&
		       !__builtin_memcmp(&ip6->daddr, replica_address, sizeof(replica_address));
	}
	return 0;
}

/* The outer headers and the message. 0: it is none of ours. */
inline_always _Bool message_parse(struct tunnel *t, struct peer_message *m, void *data, void *end)
{
	struct ethhdr *eth = data;
	struct gue_header *gue;
	struct udphdr *udp;
	__be16 protocol;
	__u32 at;

	if ((void *)(eth + 1) > end)
		return 0;
	protocol = eth->h_proto;
	t->l3 = sizeof(*eth);
	if (protocol == bpf_htons(ETH_P_8021Q)) {
		struct vlan_header *vlan = (void *)(eth + 1);

		if ((void *)(vlan + 1) > end)
			return 0;
		protocol = vlan->protocol;
		t->l3 += sizeof(*vlan);
	}
	t->outer_ipv6 = protocol == bpf_htons(ETH_P_IPV6);
	if (t->outer_ipv6) {
		struct ipv6hdr *ip6 = data + (t->l3 & 31);

		if ((void *)(ip6 + 1) > end)
			return 0;
		t->length = bpf_ntohs(ip6->payload_len);
		t->tos = ip6->priority << 4 | ip6->flow_lbl[0] >> 4;
		at = (t->l3 & 31) + sizeof(*ip6);
	} else {
		struct iphdr *ip = data + (t->l3 & 31);

		if ((void *)(ip + 1) > end)
			return 0;
		t->length = bpf_ntohs(ip->tot_len) - sizeof(*ip);
		t->tos = ip->tos;
		at = (t->l3 & 31) + sizeof(*ip);
	}
	udp = data + at;
	gue = (void *)(udp + 1);
	if ((void *)(gue + 1) + sizeof(*m) > end || gue->version_control_words != sizeof(*m) / 4 || gue->flags ||
	    udp->len != bpf_htons(t->length))
		return 0;
	t->inner_ipv6 = gue->protocol == IPPROTO_IPV6;
	t->inner = at + PEER_HEADERS;
	__builtin_memcpy(m, gue + 1, sizeof(*m));
	return m->type == GUE_PRIVATE_PEER;
}

/* The packet inside, and its flow: its own, the one that it quotes, or seen the other way round. */
inline_always const struct packet *message_flow(struct xdp_md *ctx, const struct tunnel *t, struct packet *p,
						struct packet *other, _Bool outbound)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	p->l3 = t->inner;
	if ((t->inner_ipv6 ? parse_ipv6(p, data, end) : parse_ipv4(p, data, end)) != PARSED ||
	    p->l4 - p->l3 > p->length || PEER_HEADERS + p->length != t->length ||
	    !frame_holds(ctx, data, end, p->l3 + p->length) || parse_ports(p, data, end) != PARSED)
		return 0;
	if (is_icmp(p) && !(functions_enabled && echo_ports(p, data, end)))
		return parse_quote(other, p, data, end) ? other : 0;
	if (!outbound)
		return p;
	reversed(other, p);
	return other;
}

inline_always _Bool message_is_genuine(const struct replica_config *config, const struct peer_message *m, __u64 key)
{
	const struct siphash_state *hash = m->flags & PEER_PARITY ? &config->mac_hash[1] : &config->mac_hash[0];
	__u8 known = m->flags & PEER_PARITY ? config->known[1] : config->known[0];

	return known && peer_mac(hash, m, key, config->self) == m->mac;
}
