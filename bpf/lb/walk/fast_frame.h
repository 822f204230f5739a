/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fast_frame.h - which fast path a frame may take: that of TCP or of UDP, in IPv4 or IPv6. NOT_FAST: none.
 * *more says which other program has a fast path for it. `more` is 0, a constant, in lb_rewritten. */
#pragma once

#include "wire/kernel.h"
#include "lb/state/node.h"
#include "lb/walk/fast_datagram.h"
#include "lb/walk/fast_path.h"
#include "lb/walk/fast_shape.h"

inline_always int fast_ip(struct xdp_md *ctx, _Bool ipv6, volatile __u8 *more)
{
	int action = fast_path(ctx, ipv6, more);

	return action != NOT_FAST ? action : fast_datagram(ctx, ipv6, more);
}

inline_always int fast_frame(struct xdp_md *ctx, volatile __u8 *more)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be16 protocol;

	if (data + sizeof(struct ethhdr) > end || !addressed_to_us(ctx, data))
		return NOT_FAST;
	protocol = *(__be16 *)(data + offsetof(struct ethhdr, h_proto));
	if (protocol == bpf_htons(ETH_P_IP))
		return fast_ip(ctx, 0, more);
	return protocol == bpf_htons(ETH_P_IPV6) ? fast_ip(ctx, 1, more) : NOT_FAST;
}
