/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* l2.h - the Ethernet header towards the server's next hop; grows or shrinks the frame to make it fit. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/send/this_host.h"

inline_always __u32 l2_length(const struct server *server)
{
	return server->vlan ? sizeof(struct ethhdr) + sizeof(struct vlan_header) : sizeof(struct ethhdr);
}

/* Replace the old l2 header by one to the server, with room for `outer` bytes behind it. 0, or -1: no headroom. */
inline_always int l2_make_room(struct xdp_md *ctx, const struct packet *p, const struct server *server, __u32 outer)
{
	int grow = (int)(l2_length(server) + outer) - p->l3;

	return grow && bpf_xdp_adjust_head(ctx, -grow) ? -1 : 0;
}

/* The addresses of a frame at data, which has room for them. */
inline_always void l2_write_addresses(void *data, const struct server *server)
{
	*(__u64 *)data = *(const __u64 *)server->destination_mac;
	*(__u32 *)(data + 8) = *(const __u32 *)(server->destination_mac + 8);
}

/* To a next hop without a tag, in a frame that has none and keeps its length. */
inline_always _Bool l2_readdress(struct xdp_md *ctx, const struct server *server)
{
	void *data = (void *)(long)ctx->data;

	if (data + sizeof(struct ethhdr) > (void *)(long)ctx->data_end)
		return 0;
	l2_write_addresses(data, server);
	return 1;
}

/* Write it; returns where the outer IP header begins, or 0. */
inline_always void *l2_write(struct xdp_md *ctx, const struct server *server, __be16 protocol)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct vlan_header *vlan = (void *)(eth + 1);
	const __u32 *macs =
		(const void *)server->destination_mac; /* copied by words: the compiler trusts no alignment here */
	__u32 *at = data;

	if ((void *)(vlan + 1) > end)
		return 0;
	at[0] = macs[0];
	at[1] = macs[1];
	at[2] = macs[2];
	if (!server->vlan) {
		eth->h_proto = protocol;
		return vlan;
	}
	eth->h_proto = bpf_htons(ETH_P_8021Q);
	vlan->tci = server->vlan;
	vlan->protocol = protocol;
	return vlan + 1;
}

inline_always enum verdict send_l2(struct xdp_md *ctx, const struct packet *p, const struct server *server,
				   enum verdict why)
{
	if (l2_make_room(ctx, p, server, 0))
		return DROPPED_NO_HEADROOM;
	if (!l2_write(ctx, server, bpf_htons(p->ipv6 ? ETH_P_IPV6 : ETH_P_IP)))
		return DROPPED_MALFORMED;
	return why;
}

inline_always int transmit(struct xdp_md *ctx, const struct server *server)
{
	if (server->ifindex == ctx->ingress_ifindex)
		return XDP_TX;
	return server->ifindex ? bpf_redirect(server->ifindex, 0) : deliver_here(ctx);
}
