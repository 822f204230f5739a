/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* route.h - forward an answer to its client as a router would. Clients are anywhere, so this alone asks the kernel's
 * FIB. */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/parse.h"

/* Returns an XDP action. What the fast way cannot do (fragmenting, resolving, tags, expired TTL) the stack does. */
static __noinline int route_to_client(struct xdp_md *ctx, const struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct bpf_fib_lookup fib = { .ifindex = ctx->ingress_ifindex,
				      .tot_len = p->length,
				      .l4_protocol = p->protocol };
	struct ethhdr *eth = data;
	struct ipv6hdr *ipv6 = (void *)(eth + 1);
	struct iphdr *ipv4 = (void *)(eth + 1);

	if (p->l3 != sizeof(*eth) || (void *)(ipv4 + 1) > end)
		return XDP_PASS;
	if (p->ipv6) {
		if ((void *)(ipv6 + 1) > end || ipv6->hop_limit <= 1)
			return XDP_PASS;
		fib.family = AF_INET6;
		__builtin_memcpy(fib.ipv6_src, &ipv6->saddr, 16);
		__builtin_memcpy(fib.ipv6_dst, &ipv6->daddr, 16);
	} else {
		if (ipv4->ttl <= 1)
			return XDP_PASS;
		fib.family = AF_INET;
		fib.ipv4_src = ipv4->saddr;
		fib.ipv4_dst = ipv4->daddr;
	}
	if (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0) != BPF_FIB_LKUP_RET_SUCCESS || fib.h_vlan_proto)
		return XDP_PASS;
	if (p->ipv6) {
		ipv6->hop_limit--;
	} else {
		checksum_replace16(&ipv4->check, bpf_htons(ipv4->ttl << 8), bpf_htons((ipv4->ttl - 1) << 8));
		ipv4->ttl--;
	}
	__builtin_memcpy(eth->h_dest, fib.dmac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, fib.smac, ETH_ALEN);
	return fib.ifindex == ctx->ingress_ifindex ? XDP_TX : bpf_redirect(fib.ifindex, 0);
}
