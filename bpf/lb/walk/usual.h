/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* usual.h - the walk for nearly all packets. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/packet/usual.h"
#include "lb/state/counters.h"
#include "lb/state/node.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/state/vips.h"
#include "lb/affinity/decision.h"
#include "lb/ladder/dispatched.h"
#include "lb/ladder/ladder.h"
#include "lb/send/encapsulate.h"
#include "lb/send/l2.h"
#include "lb/walk/fast_path.h"
#include "lb/walk/fast_quic.h"

/* The same walk for a segment of the usual shape that goes to its server by IP in IP: nearly all there are. What is known of
 * them is constant here, so that it takes half the instructions. Does nothing to those that turn out to be others: it first finds, then commits. */
inline_always int usual_way(struct xdp_md *ctx, const struct packet *p)
{
	struct decision d = {};
	struct finding f = {};
	const __u32 *number = find_vip(p->destination, p->destination_port, p->protocol, p->ipv6);
	enum verdict verdict;

	if (!number)
		return UNUSUAL;
	d.service = service_by_number(*number);
	if (!d.service || !is_ip_in_ip(d.service->forward) || d.service->flags & SERVICE_THROUGH)
		return UNUSUAL;
	read_carried(ctx, p, d.service, &d.carried);
	verdict = steer_find(p, &d, &f);
	if (!d.server || !(d.server->flags & SERVER_NEXT_HOP) || d.stops_count ||
	    p->length + outer_length(d.server, 0, 0) > d.server->mtu)
		return UNUSUAL;
	verdict = steer_commit_usual(p, &d, &f, verdict);
	if (verdict == VERDICT_CONTINUE)
		return UNUSUAL;
	if (verdict != DROPPED_OVER_LIMIT) {
		count_server(d.server->counter, is_syn(p), verdict == FORWARDED_NEW, p->length);
		verdict = send_ipip(ctx, p, d.server, verdict);
	}
	count_verdict(d.service->number, verdict, p->length);
	return is_dropped(verdict) ? XDP_DROP : transmit(ctx, d.server);
}

inline_always int usual_ipv4(struct xdp_md *ctx)
{
	struct packet packet = {};

	return parse_usual_ipv4(&packet, ctx) ? usual_way(ctx, &packet) : UNUSUAL;
}

inline_always int usual_ipv6(struct xdp_md *ctx)
{
	struct packet packet = {};

	return parse_usual_ipv6(&packet, ctx) ? usual_way(ctx, &packet) : UNUSUAL;
}

inline_always int usual_frame(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be16 protocol;

	if (data + sizeof(struct ethhdr) > end || !addressed_to_us(ctx, data))
		return UNUSUAL;
	protocol = *(__be16 *)(data + offsetof(struct ethhdr, h_proto));
	if (protocol == bpf_htons(ETH_P_IP)) {
		int action = fast_path(ctx, 0);

		if (action == UNUSUAL)
			action = fast_quic(ctx, 0);
		return action != UNUSUAL ? action : usual_ipv4(ctx);
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		int action = fast_path(ctx, 1);

		if (action == UNUSUAL)
			action = fast_quic(ctx, 1);
		return action != UNUSUAL ? action : usual_ipv6(ctx);
	}
	return UNUSUAL;
}
