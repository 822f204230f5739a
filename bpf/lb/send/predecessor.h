/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* predecessor.h - what goes on to a predecessor must not go around: neither back to who sent it, nor on for ever. */
#pragma once

#include "wire/kernel.h"
#include "wire/hops.h"
#include "wire/parse.h"
#include "lb/state/service.h"

/* 0: it came from there, or has no hop left. A global function: it is verified once. */
__noinline int leaves_for_predecessor(struct xdp_md *ctx, const struct packet *p, const struct server *server)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if (!p || !server || (void *)(eth + 1) > end)
		return 0;
	if (server->flags & SERVER_ON_LINK && !__builtin_memcmp(eth->h_source, server->destination_mac, ETH_ALEN))
		return 0;
	return hops_limit(packet_at(data, p->l3), end, p->ipv6, PREDECESSOR_HOPS);
}
