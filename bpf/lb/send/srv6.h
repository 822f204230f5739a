/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* srv6.h - stops as segments of an outer IPv6 header (RFC 8754, RFC 8986 5.1 H.Encaps). Without stops SRv6 is IP in
 * IPv6: encapsulate.h. */
#pragma once

#include "wire/kernel.h"
#include "wire/gue.h"
#include "wire/parse.h"
#include "wire/srh.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"
#include "lb/send/encapsulate.h"
#include "lb/send/l2.h"

/* The server is the first segment, and every one that its stops' places name before it. A stop that is of another
 * family, or gone, repeats the address before, as in GUE. */
inline_always _Bool srh_write(void *at, void *end, const struct packet *p, const struct service *service,
			      const struct server *server, const struct decision *d)
{
	struct srh *srh = at;

	if ((void *)(srh + 1) > end)
		return 0;
	srh->nexthdr = p->ipv6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	srh->length = (d->stops_count + 1) * 2;
	srh->type = SRH_TYPE;
	srh->left = d->stops_count - d->next;
	srh->last = d->stops_count;
	srh->flags = 0;
	srh->tag = 0;
	for (__u32 i = 0; i <= STOPS_MAX && i <= d->stops_count; i++) {
		const struct server *stop = i ? server_by_id(service, d->stops[i - 1]) : 0;
		void *segment = (void *)(srh + 1) + ((d->stops_count - i) & 7) * 16;

		if (segment + 16 > end)
			return 0;
		if (stop && stop->flags & SERVER_IPV6)
			server = stop;
		__builtin_memcpy(segment, server->address, 16);
	}
	return 1;
}

/* A global function: verified once. Returns an enum verdict, VERDICT_CONTINUE if all is well. */
__noinline int srv6_wrap(struct xdp_md *ctx, const struct packet *p, const struct service *service,
			 const struct server *server, const struct decision *d)
{
	__u32 outer;
	void *at;

	if (!p || !service || !server || !d)
		return DROPPED_MALFORMED;
	outer = sizeof(struct ipv6hdr) + srh_length(d->stops_count);
	if (l2_make_room(ctx, p, server, outer))
		return DROPPED_NO_HEADROOM;
	at = outer_ip(ctx, p, server, IPPROTO_ROUTING, outer, flow_entropy(p), 1);
	return at && srh_write(at, (void *)(long)ctx->data_end, p, service, server, d) ? VERDICT_CONTINUE
										       : DROPPED_MALFORMED;
}

inline_always enum verdict send_srv6(struct xdp_md *ctx, const struct packet *p, const struct service *service,
				     const struct server *server, const struct decision *d)
{
	enum verdict verdict;

	if (!d->stops_count)
		return send_ipip(ctx, p, server, d->verdict);
	verdict = srv6_wrap(ctx, p, service, server, d);
	return verdict == VERDICT_CONTINUE ? d->verdict : verdict;
}
