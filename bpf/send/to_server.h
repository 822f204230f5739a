/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* to_server.h - send a packet of any shape to its server by the way of its service: does it fit, which timestamp, which header. */
#pragma once

/* A global function: see steer_any. An IPv6 packet of 1280 bytes is sent, whatever is said of the path: no client sends smaller ones (RFC 8200 5). */
__noinline int send_to_server(struct xdp_md *ctx, const struct packet *p, const struct service *service, const struct server *server,
			      const struct decision *decided)
{
	struct decision d;
	__u8 forward;
	__u32 outer = 0;

	if (!p || !service || !server || !decided)
		return DROPPED_MALFORMED;
	d = *decided;
	d.service = service;
	d.server = server;
	forward = service->forward;
	if (!(server->flags & SERVER_NEXT_HOP))
		return DROPPED_NO_NEXT_HOP;
	if (d.stops_count && !(forward == FORWARD_SRV6 && server->flags & SERVER_IPV6))
		forward = FORWARD_GUE;
	if (forward == FORWARD_GUE)
		outer = outer_length(server, 1, d.stops_count);
	else if (is_ip_in_ip(forward))
		outer = outer_length(server, 0, 0) + srh_length(d.stops_count);
	if (p->length + outer > server->mtu && (!p->ipv6 || p->length > IPV6_MIN_MTU))
		return answer_too_big(ctx, p, server->mtu - outer);
	if (d.carried.changed && !write_echo(ctx, p, &d.carried))
		return DROPPED_MALFORMED;
	if (service->flags & SERVICE_THROUGH) {
		if (d.verdict == FORWARDED_BY_COOKIE && d.carried.at && !through_restore(ctx, p, &d))
			return DROPPED_NO_CLOCK;
		if (d.verdict == FORWARDED_STRIPPED && !through_strip(ctx, p, &d))
			return DROPPED_MALFORMED;
	}
	switch (forward) {
	case FORWARD_IPIP:
		return send_ipip(ctx, p, server, d.verdict);
	case FORWARD_GUE:
		return send_gue(ctx, p, service, server, decided);
	case FORWARD_SRV6:
		return send_srv6(ctx, p, service, server, decided);
	case FORWARD_NAT:
		return send_nat(ctx, p, server, d.verdict);
	default:
		return send_l2(ctx, p, server, d.verdict);
	}
}
