/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* loop.h - packets to a VIP but none of its services, on a host that routes: most likely its routes lead back to the
 * router that sent them. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/state/vips.h"

/* By the device, or to the neighbour, that sent it? The route may be by a VLAN of the device that this program sees. */
inline_always _Bool leads_back(struct xdp_md *ctx, const struct bpf_fib_lookup *fib)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	return fib->ifindex == ctx->ingress_ifindex ||
	       ((void *)(eth + 1) <= end && !__builtin_memcmp(fib->dmac, eth->h_source, ETH_ALEN));
}

/* Would the stack forward the packet? It may keep a packet to an address of its own, or drop one. An address that was a
 * VIP may be another host's by now, and this host its router: of those only packets that would go back count. There is
 * no answer: a node that does not know a service yet must not reset the connections of those that do. */
__noinline int would_loop(struct xdp_md *ctx, const struct packet *p)
{
	struct bpf_fib_lookup fib = { .ifindex = ctx->ingress_ifindex };
	_Bool is_vip;

	if (!p)
		return 0;
	is_vip = find_vip(p->destination, 0, 0, p->ipv6) != 0;
	if (!is_vip && !find_vip(p->destination, 0, FORMER_VIP, p->ipv6))
		return 0;
	if (p->ipv6) {
		fib.family = AF_INET6;
		__builtin_memcpy(fib.ipv6_src, p->source, 16);
		__builtin_memcpy(fib.ipv6_dst, p->destination, 16);
	} else {
		fib.family = AF_INET;
		fib.ipv4_src = p->source[0];
		fib.ipv4_dst = p->destination[0];
	}
	switch (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
		return is_vip || leads_back(ctx, &fib);
	default:
		return 0;
	}
}
