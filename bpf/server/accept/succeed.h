/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* succeed.h - predecessor: what load balancers take for a connection of this server, and the host does not have, goes
 * on to who had the VIP before: a foreign timestamp may look like a cookie, and some packets have none. */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/choices.h"
#include "wire/decapsulate.h"
#include "wire/gue.h"
#include "wire/hops.h"
#include "wire/parse.h"
#include "wire/tunnel.h"
#include "server/agent.h"
#include "server/verdict.h"
#include "server/accept/deliver.h"

/* Is it of a connection that this server may not have, and has not? */
inline_always _Bool is_of_predecessor(struct xdp_md *ctx, const struct packet *p, const struct served *served)
{
	return served && served->predecessor_forward && !deliver_is_syn(p) && !deliver_is_mine(ctx, p);
}

/* The Ethernet header, and its tag: the frame has one, too. Returns where the packet begins. */
inline_always void *succeed_ethernet(void *data, void *end, const struct stop *stop, __be16 protocol)
{
	struct ethhdr *eth = data;
	struct vlan_header *vlan = (void *)(eth + 1);

	if ((void *)(vlan + 1) > end)
		return 0;
	__builtin_memcpy(eth->h_dest, stop->destination_mac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, stop->source_mac, ETH_ALEN);
	if (!stop->vlan) {
		eth->h_proto = protocol;
		return vlan;
	}
	eth->h_proto = bpf_htons(ETH_P_8021Q);
	vlan->tci = stop->vlan;
	vlan->protocol = protocol;
	return vlan + 1;
}

/* A tunnel from whom the one that was taken off came. */
inline_always _Bool succeed_outer(struct xdp_md *ctx, const struct tunnel *t, const struct packet *p,
				  const struct served *served, const struct stop *stop, _Bool gue)
{
	__u32 behind = gue ? sizeof(struct udphdr) + sizeof(struct gue_header) : 0, entropy = p->source_port;
	__u8 protocol = gue ? IPPROTO_UDP : p->ipv6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	__u32 outer = (t->outer_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) + behind;
	struct ipv6hdr *ip6;
	struct iphdr *ip;
	void *end;

	if (bpf_xdp_adjust_head(ctx, -(int)outer))
		return 0;
	end = (void *)(long)ctx->data_end;
	ip = succeed_ethernet((void *)(long)ctx->data, end, stop, bpf_htons(t->outer_ipv6 ? ETH_P_IPV6 : ETH_P_IP));
	if (!ip)
		return 0;
	ip6 = (void *)ip;
	if (t->outer_ipv6) {
		if ((void *)(ip6 + 1) > end)
			return 0;
		*(__be32 *)ip6 = bpf_htonl(6u << 28 | (__u32)p->tos << 20 | (entropy * 0x85ebca6b >> 12));
		ip6->payload_len = bpf_htons(p->length + behind);
		ip6->nexthdr = protocol;
		ip6->hop_limit = 64;
		__builtin_memcpy(&ip6->saddr, t->source, 16);
		__builtin_memcpy(&ip6->daddr, served->predecessor, 16);
	} else {
		if ((void *)(ip + 1) > end)
			return 0;
		write_ipv4_header(ip, p->tos, p->length + outer, 0, 1, protocol, t->source[3], served->predecessor[0]);
	}
	return !gue || gue_write_headers(t->outer_ipv6 ? (void *)(ip6 + 1) : (void *)(ip + 1), end, p->ipv6,
					 p->length + behind, entropy, 0);
}

/* A global function: it is verified once. Returns an enum agent_verdict. */
__noinline int succeed(struct xdp_md *ctx, const struct tunnel *t, const struct packet *p, const struct served *served,
		       int *action)
{
	__be32 address[4]; /* Linux 6.1 takes no keys of maps from what a function is given */
	const struct stop *stop;
	void *data, *end;

	if (!t || !p || !served || !action)
		return DROPPED_MALFORMED_TUNNEL;
	__builtin_memcpy(address, served->predecessor, 16);
	stop = bpf_map_lookup_elem(&stop_hops, address);
	if (!stop || !stop->vlan != (t->l3 == sizeof(struct ethhdr)))
		return DROPPED_STOP_UNREACHABLE;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (!hops_limit(data + (p->l3 & 255), end, p->ipv6, PREDECESSOR_HOPS))
		return DROPPED_STOP_EXPIRED;
	if (!tunnel_copy_congestion(t, data, end))
		return DROPPED_CONGESTED;
	if (!tunnel_strip(ctx, t))
		return DROPPED_MALFORMED_TUNNEL;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (served->predecessor_forward == FORWARD_L2 + 1) {
		if (!succeed_ethernet(data, end, stop, bpf_htons(p->ipv6 ? ETH_P_IPV6 : ETH_P_IP)))
			return DROPPED_MALFORMED_TUNNEL;
	} else if (!succeed_outer(ctx, t, p, served, stop, served->predecessor_forward == FORWARD_GUE + 1)) {
		return DROPPED_MALFORMED_TUNNEL;
	}
	*action = stop->ifindex == ctx->ingress_ifindex ? XDP_TX : bpf_redirect(stop->ifindex, 0);
	return HANDED_TO_PREDECESSOR;
}
