/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* tunnel.h - an encapsulated packet: is it for this host, and for a connection here? Delivers it, or forwards it to the
 * next stop. */
#pragma once

#include "wire/kernel.h"
#include "wire/decapsulate.h"
#include "wire/parse.h"
#include "wire/tunnel.h"
#include "server/agent.h"
#include "server/verdict.h"
#include "server/accept/accept.h"
#include "server/accept/deliver.h"
#include "server/accept/succeed.h"
#include "server/tunnel/forward.h"
#include "server/tunnel/tunnel_sources.h"

/* Is the tunnel ours: for this host's MAC and address, about something that this host serves? */
inline_always enum agent_verdict recognise(struct xdp_md *ctx, struct tunnel *t, struct packet *p, const __u32 **row)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 ifindex = ctx->ingress_ifindex, length = bpf_xdp_get_buff_len(ctx);
	const struct interface *interface;
	struct served_key key = {};
	enum tunnel_search search = tunnel_parse(t, data, end, 1);
	enum parse_result parsed;

	if (search == TUNNEL_ABSENT)
		return PASSED_NOT_TUNNELLED;
	interface = bpf_map_lookup_elem(&interfaces, &ifindex);
	if (!interface || __builtin_memcmp(interface->mac, data, sizeof(interface->mac)) ||
	    !bpf_map_lookup_elem(&own_addresses, t->destination) || search == TUNNEL_MALFORMED)
		return PASSED_FOREIGN_TUNNEL;
	p->l3 = t->inner & 255;
	parsed = t->inner_ipv6 ? parse_ipv6(p, data, end) : parse_ipv4(p, data, end);
	if (parsed == PARSED)
		parsed = p->l3 + p->length > length || p->l4 - p->l3 > p->length ? PARSE_MALFORMED
										 : parse_ports(p, data, end);
	if (parsed == PARSE_MALFORMED)
		return DROPPED_MALFORMED_TUNNEL;
	__builtin_memcpy(key.address, p->destination, sizeof(key.address));
	key.ipv6 = p->ipv6;
	key.port = p->destination_port;
	key.protocol = p->destination_port ? p->protocol : 0;
	if (parsed != PARSED || !(*row = served_row(&key)))
		return PASSED_FOREIGN_TUNNEL;
	if (!tunnel_lengths_agree(t, p, data, end))
		return DROPPED_MALFORMED_TUNNEL;
	return tunnel_accept(t->source) ? AGENT_CONTINUE : DROPPED_FOREIGN_SOURCE;
}

/* AGENT_CONTINUE: a packet with stops stays here. */
inline_always enum agent_verdict stop_here(struct xdp_md *ctx, const struct tunnel *t, const struct packet *p,
					   const struct served *served, enum agent_verdict *delivered, int *action)
{
	_Bool choices = served && served->flags & SERVED_CHOICES, is_new = choices && deliver_is_syn(p);
	enum agent_verdict verdict;

	*delivered = is_new ? accepted_at(t->column) : DECAPSULATED_MINE;
	if (is_new ? accept_takes(ctx, t, p, served) : deliver_is_mine(ctx, p))
		return AGENT_CONTINUE;
	if (!is_new)
		*delivered = DECAPSULATED_LAST;
	if (choices && !tunnel_known(t->source)) /* nobody has a server relay for him */
		return AGENT_CONTINUE;
	verdict = forward_tunnel(ctx, t, action);
	if (!is_new)
		return verdict;
	return verdict == HANDED_ON		     ? passed_on_at(t->column)
	       : verdict == DROPPED_MALFORMED_TUNNEL ? verdict
						     : AGENT_CONTINUE;
}

inline_always enum agent_verdict handle_tunnel(struct xdp_md *ctx, int *action)
{
	enum agent_verdict verdict, delivered = DECAPSULATED;
	const struct served *served;
	const __u32 *row = 0;
	struct tunnel t = {};
	struct packet p = {};

	*action = XDP_PASS;
	verdict = recognise(ctx, &t, &p, &row);
	if (verdict == AGENT_CONTINUE && row && (t.stops || predecessors_used || deliver_is_syn(&p))) {
		served = bpf_map_lookup_elem(&served_services, row);
		if (t.stops)
			verdict = stop_here(ctx, &t, &p, served, &delivered, action);
		if (verdict == AGENT_CONTINUE && predecessors_used && delivered != DECAPSULATED_MINE &&
		    is_of_predecessor(ctx, &p, served))
			return succeed(ctx, &t, &p, served, action);
		if (verdict == AGENT_CONTINUE && deliver_is_syn(&p))
			mark_accepted(&p, served, t.column);
	}
	if (verdict != AGENT_CONTINUE)
		return verdict;
	if (!tunnel_copy_congestion(&t, (void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return DROPPED_CONGESTED;
	return tunnel_strip(ctx, &t) ? delivered : DROPPED_MALFORMED_TUNNEL;
}
