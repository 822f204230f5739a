/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* return.h - return: through: answers of servers pass this node, which makes them the service's. */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/parse.h"
#include "wire/reversed.h"
#include "lb/packet/quote.h"
#include "lb/state/node.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"
#include "lb/ladder/slow.h"
#include "lb/ladder/fragments.h"
#include "lb/send/nat.h"
#include "lb/send/route.h"
#include "lb/send/through.h"

/* Are there services with return: through? */
volatile __u32 through_enabled;

/* Whose answer is this? */
static __noinline const __u64 *return_find(const struct packet *p, const void *source_mac)
{
	struct return_key key = { .port = p->source_port, .protocol = p->protocol };
	const __u64 *known;

	__builtin_memcpy(key.address, p->source, 16);
	known = bpf_map_lookup_elem(&returns, &key);
	if (known)
		return known;
	__builtin_memcpy(key.mac, source_mac, ETH_ALEN);
	return bpf_map_lookup_elem(&returns, &key);
}

/* An error about what a client has sent to a server: whose server? The client is whom it goes to. */
static __noinline const __u64 *return_find_quoted(struct xdp_md *ctx, const struct packet *p, struct packet *quote)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct icmp_header *icmp = packet_at(data, p->l4);

	if (p->fragment || data + sizeof(struct ethhdr) > end || (void *)(icmp + 1) > end || !is_icmp_error(p, icmp) ||
	    !parse_quote(quote, p, data, end) || __builtin_memcmp(quote->destination, p->destination, 16))
		return 0;
	return return_find(quote, ((struct ethhdr *)data)->h_source);
}

/* Makes the server's answer the service's. */
__noinline int mark_return(struct xdp_md *ctx, const struct packet *p, const struct service *service,
			   const struct server *server, const struct decision *decided)
{
	struct decision d = { .service = service, .server = server };
	enum verdict verdict = RETURNED_UNMARKED;

	if (!p || !service || !server || !decided)
		return DROPPED_MALFORMED;
	d.id = decided->id;
	d.carried = decided->carried;
	if (d.carried.at && through_mark(ctx, p, &d))
		verdict = RETURNED;
	if (service->forward == FORWARD_NAT && !nat_to_client(ctx, p, service))
		return DROPPED_MALFORMED;
	return verdict;
}

/* An answer of a server whose service returns through this node, or an error about what it was sent? *action is set
 * when it was sent on. */
inline_always enum verdict walk_return(struct xdp_md *ctx, struct packet *p, struct packet *quote, struct decision *d,
				       int *action)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct service *service;
	const struct server *server;
	enum verdict verdict;
	const __u64 *known;

	if (!through_enabled || data + sizeof(struct ethhdr) > end)
		return PASSED_NO_SERVICE;
	if (is_icmp(p))
		known = return_find_quoted(ctx, p, quote);
	else
		known = p->fragment == FRAGMENT_LATER ? fragment_find(p)
						      : return_find(p, ((struct ethhdr *)data)->h_source);
	if (!known)
		return PASSED_NO_SERVICE;
	service = service_by_number(*known >> 32);
	if (!service)
		return PASSED_NO_SERVICE;
	d->id = *known;
	server = server_by_id(service, d->id);
	if (!server)
		return PASSED_NO_SERVICE;
	if (!__builtin_memcmp(p->destination, server->source, 16))
		return PASSED_PROBE;
	if (find_vip_address(p)) /* a VIP is nobody's client */
		return PASSED_NO_SERVICE;
	if (p->fragment == FRAGMENT_FIRST)
		fragment_learn(p, service->number, d->id);
	/* A timestamp that comes back was let through with the SYN, be it by a node that knows this server better. */
	if (!is_icmp(p))
		read_carried(ctx, p, service, &d->carried);
	verdict = mark_return(ctx, p, service, server, d);
	d->service = service;
	d->server = server;
	if (is_dropped(verdict))
		return verdict;
	*action = route_to_client(ctx, p);
	return verdict;
}
