/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* tier.h - the second tier: what the first has put around packets comes off, and answers go round it. */
#pragma once

#include "wire/kernel.h"
#include "wire/decapsulate.h"
#include "wire/parse.h"
#include "wire/tunnel.h"
#include "lb/state/node.h"
#include "lb/state/trace.h"
#include "lb/state/verdict.h"
#include "lb/state/vips.h"
#include "lb/send/route.h"

/* Second tier: where the first sends to. All 0: this node takes no tunnel for its own. */
__be32 tier_address[4];
volatile __u32 tier_enabled;

/* Where a packet is from. One byte and never 0, so that the verifier does not follow the value and walks the rest once.
 */
enum { INGRESS_DIRECT = 1, INGRESS_TIER1, INGRESS_PEER };

/* What goes on to the host's stack keeps its outer header: somebody may have looked at that. */
inline_always _Bool is_for_vip(const struct tunnel *t, void *data, void *end)
{
	struct iphdr *ip = data + (t->inner & 127);
	struct ipv6hdr *ip6 = (void *)ip;
	__be32 destination[4] = {};

	if (t->inner_ipv6) {
		if ((void *)(ip6 + 1) > end)
			return 0;
		__builtin_memcpy(destination, &ip6->daddr, sizeof(destination));
	} else {
		if ((void *)(ip + 1) > end)
			return 0;
		destination[0] = ip->daddr;
	}
	return find_vip(destination, 0, 0, t->inner_ipv6) != 0;
}

/* Second tier: decapsulates packets from the first. VERDICT_CONTINUE: not dropped. */
static __noinline enum verdict decap_tier(struct xdp_md *ctx, volatile __u8 *ingress)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tunnel t = {};
	enum tunnel_search search;

	if (data + sizeof(struct ethhdr) > end || !addressed_to_us(ctx, data))
		return VERDICT_CONTINUE;
	search = tunnel_parse(&t, data, end, 0);
	if (search == TUNNEL_ABSENT || __builtin_memcmp(t.destination, tier_address, sizeof(tier_address)))
		return VERDICT_CONTINUE;
	if (search == TUNNEL_MALFORMED)
		return DROPPED_MALFORMED;
	if (!is_for_vip(&t, data, end))
		return VERDICT_CONTINUE;
	if (!tunnel_copy_congestion(&t, data, end))
		return DROPPED_CONGESTED;
	*ingress = INGRESS_TIER1;
	return tunnel_strip(ctx, &t) ? VERDICT_CONTINUE : DROPPED_MALFORMED;
}

/* Decapsulates a packet that is only traced: the client's is inside. */
static __noinline int uncover(struct xdp_md *ctx)
{
	struct tunnel t = {};

	return tunnel_parse(&t, (void *)(long)ctx->data, (void *)(long)ctx->data_end, 0) == TUNNEL_FOUND &&
	       tunnel_strip(ctx, &t);
}

/* Reports a packet that decap_tier dropped to who traces: the inner packet, or the tunnel if that is malformed. */
static __noinline int report_tunnel(struct xdp_md *ctx, enum verdict verdict)
{
	struct traced_packet *traced = traced_now();
	struct packet packet = {};
	struct trace_event *event;

	parse_frame(&packet, ctx, (void *)(long)ctx->data, (void *)(long)ctx->data_end); /* as far as it goes */
	event = traced ? trace_reserve(&packet, 0) : 0;
	if (!event)
		return 0;
	trace_fill(event, &packet, traced, verdict);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* An answer of this node to what the first tier sent on goes to its client by our own route: the first tier would not
 * know what to do with it. A global function: it is verified once, not for every path that leads here. */
__noinline int route_answer(struct xdp_md *ctx, __u32 l3, __u32 ipv6)
{
	struct packet answer = { .l3 = l3, .ipv6 = ipv6 != 0 };

	return route_to_client(ctx, &answer);
}
