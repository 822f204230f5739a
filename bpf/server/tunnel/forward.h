/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* forward.h - forwards an encapsulated packet to the next stop in its header: GUE's, or that of segment routing. */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/gue.h"
#include "wire/hops.h"
#include "wire/tunnel.h"
#include "server/agent.h"
#include "server/verdict.h"

/* The next stop that is not this host and can be reached. */
struct next_stop {
	struct stop stop;
	__be32 address[4];
	__u32 tried; /* addresses examined */
	_Bool unreachable; /* one of them is another host's that cannot be reached */
};

/* 0: there is none. A global function: verified once. */
__noinline int next_stop_find(struct xdp_md *ctx, const struct tunnel *t, struct next_stop *found)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be32 address[4]; /* Linux 6.1 takes no keys of maps from what a function is given */
	__u32 offset;

	if (!t || !found)
		return 0;
	offset = t->next;
	for (int i = 0; i < STOPS_MAX; i++) {
		__be32 *at = data + (offset & 255);
		const struct stop *stop;

		if (i >= t->left || (void *)(at + 4) > end) /* behind IPv4 addresses the inner packet follows */
			return 0;
		found->tried = i + 1;
		offset += t->routed ? -16 : t->outer_ipv6 ? 16 : 4;
		__builtin_memset(address, 0, 16);
		address[0] = at[0];
		if (t->outer_ipv6) {
			address[1] = at[1];
			address[2] = at[2];
			address[3] = at[3];
		}
		/* user space leaves own addresses out */
		stop = bpf_map_lookup_elem(&stop_hops, address);
		if (stop && !stop->vlan == (t->l3 == sizeof(struct ethhdr))) {
			found->stop = *stop;
			__builtin_memcpy(found->address, address, 16);
			return 1;
		}
		if (!bpf_map_lookup_elem(&own_addresses, address))
			found->unreachable = 1;
	}
	return 0;
}

/* The outer header's new destination, and every checksum that covers it. */
inline_always _Bool rewrite_destination(const struct tunnel *t, void *data, void *end, const __be32 address[4],
					__be32 stops_before, __be32 stops_after)
{
	struct iphdr *ip = data + (t->l3 & 31);
	struct ipv6hdr *ip6 = (void *)ip;
	struct udphdr *udp = (void *)ip + (t->outer_ipv6 ? sizeof(*ip6) : sizeof(*ip));
	_Bool covered;

	if ((void *)(udp + 1) > end || (void *)(t->outer_ipv6 ? (void *)(ip6 + 1) : (void *)(ip + 1)) > end)
		return 0;
	covered = !t->routed && udp->check;
	if (covered)
		checksum_replace32(&udp->check, stops_before, stops_after);
	if (!t->outer_ipv6) {
		if (covered)
			checksum_replace32(&udp->check, ip->daddr, address[0]);
		checksum_replace32(&ip->check, ip->daddr, address[0]);
		ip->daddr = address[0];
	} else {
		for (int i = 0; i < 4; i++) {
			if (covered)
				checksum_replace32(&udp->check, ip6->daddr.in6_u.u6_addr32[i], address[i]);
			ip6->daddr.in6_u.u6_addr32[i] = address[i];
		}
	}
	if (covered && !udp->check)
		udp->check = 0xffff; /* RFC 768: 0 means that there is no checksum */
	return 1;
}

/* AGENT_CONTINUE: no further stop; the packet is unchanged. */
inline_always enum agent_verdict forward_tunnel(struct xdp_md *ctx, const struct tunnel *t, int *action)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be32 *word = data + (t->stops & 127), before; /* the first of struct gue_stops, whose index of the next stop
							   counts up, or of struct srh: down */
	struct ethhdr *eth = data;
	struct next_stop next = {};

	if ((void *)(eth + 1) + sizeof(struct vlan_header) > end || (void *)(word + 1) > end)
		return DROPPED_MALFORMED_TUNNEL;
	if (!next_stop_find(ctx, t, &next))
		return next.unreachable ? DROPPED_STOP_UNREACHABLE : AGENT_CONTINUE;
	if (!hops_limit(data + (t->l3 & 31), end, t->outer_ipv6, HOPS_MAX)) /* ends loops of tunnels */
		return DROPPED_STOP_EXPIRED;
	before = *word;
	*word = bpf_htonl(bpf_ntohl(before) + (t->routed ? -next.tried : next.tried << 16));
	if (!rewrite_destination(t, data, end, next.address, before, *word))
		return DROPPED_MALFORMED_TUNNEL;
	__builtin_memcpy(eth->h_dest, next.stop.destination_mac, 6);
	__builtin_memcpy(eth->h_source, next.stop.source_mac, 6);
	if (next.stop.vlan)
		((struct vlan_header *)(eth + 1))->tci = next.stop.vlan;
	*action = next.stop.ifindex == ctx->ingress_ifindex ? XDP_TX : bpf_redirect(next.stop.ifindex, 0);
	return HANDED_ON;
}
