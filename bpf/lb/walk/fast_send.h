/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fast_send.h - the end of the fast path: a packet whose server is known goes there by IP in IP, GUE or Ethernet,
 * untagged. */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/parse.h"
#include "lb/state/counters.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/closing.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/deferred.h"
#include "lb/affinity/local_table.h"
#include "lb/ladder/dispatched.h"
#include "lb/ladder/ladder.h"
#include "lb/send/encapsulate.h"
#include "lb/send/l2.h"
#include "lb/send/nat.h"
#include "lb/send/through.h"
#include "lb/walk/fast_shape.h"

/* What the packet changes for later ones, and how it is counted then. VERDICT_CONTINUE: it is not for here, and nothing
 * has changed. */
inline_always enum verdict fast_commit(const struct packet *p, const struct decision *d, const struct finding *f,
				       enum verdict verdict)
{
	_Bool closes = p->tcp_flags & (TCP_FLAG_FIN_BIT | TCP_FLAG_RST_BIT);
	struct packet copy; /* for functions that are not inlined: so *p need not be in memory */

	if (verdict == FORWARDED_BY_TABLE)
		return table_commit_fast(p, d);
	if (verdict == FORWARDED_NEW) {
		if (d->service->affinity == AFFINITY_LOCAL_TABLE) {
			copy = *p;
			if (!local_table_add(&copy, d->service, d->id))
				return VERDICT_CONTINUE;
		}
		dispatch_commit(d);
	} else if (verdict == FORWARDED_BY_LOCAL_TABLE && f->entry) {
		copy = *p;
		local_table_commit(&copy, d->service, f->entry);
		closing_commit(&copy, d);
	} else if (verdict == FORWARDED_BY_COOKIE && closes) {
		copy = *p;
		closing_commit(&copy, d);
	}
	return verdict;
}

/* A packet that goes to its server is counted. 0: it is dropped. */
inline_always _Bool fast_count(const struct packet *p, const struct decision *d, const struct server *server,
			       enum verdict verdict)
{
	if (verdict == FORWARDED_BY_COOKIE) {
		count_fast(server->counter, p->length);
		return 1;
	}
	if (verdict != DROPPED_OVER_LIMIT)
		count_server(server->counter, is_syn(p), verdict == FORWARDED_NEW, p->length);
	count_verdict(d->service->number, verdict, p->length);
	return verdict != DROPPED_OVER_LIMIT;
}

/* NOT_FAST: nothing has changed. */
inline_always int fast_try(struct xdp_md *ctx, const struct packet *p, const struct decision *d,
			   const struct finding *f, enum verdict verdict)
{
	const struct server *server = d->server;
	_Bool ipv6, written, gue = d->service->forward == FORWARD_GUE, l2 = d->service->forward == FORWARD_L2;
	__u32 outer;

	if (!server || !(server->flags & SERVER_NEXT_HOP) || server->flags & SERVER_NO_COOKIE || server->vlan)
		return NOT_FAST;
	ipv6 = server->flags & SERVER_IPV6;
	outer = l2 ? 0 : outer_length(server, gue, 0);
	if (p->length + outer > server->mtu || (!l2 && bpf_xdp_adjust_head(ctx, -(int)outer)))
		return NOT_FAST;
	verdict = fast_commit(p, d, f, verdict);
	if (verdict == VERDICT_CONTINUE) {
		if (!l2 && bpf_xdp_adjust_head(ctx, (int)outer))
			return XDP_ABORTED; /* what has grown can shrink */
		return NOT_FAST;
	}
	if (!fast_count(p, d, server, verdict))
		return XDP_DROP;
	if (l2)
		written = l2_readdress(ctx, server);
	else if (gue)
		written = ipv6 ? write_untagged(ctx, p, server, 1, 1) : write_untagged(ctx, p, server, 0, 1);
	else
		written = ipv6 ? write_untagged(ctx, p, server, 1, 0) : write_untagged(ctx, p, server, 0, 0);
	if (!written)
		return XDP_ABORTED; /* the verifier does not know that the frame has grown */
	return transmit(ctx, server);
}

/* TSecr of a packet whose timestamps stand where fast_first_echo looks, as the server wants it. 0: it is not known. */
inline_always _Bool fast_restored(struct xdp_md *ctx, const struct packet *p, const struct service *service,
				  const struct server *server, __u32 *restored)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const __be32 *echo = data + FAST_ECHO(p->ipv6);

	return (void *)(echo + 1) <= end && through_restored(service, server, bpf_ntohl(*echo), restored);
}

/* The packet itself, which begins `grow` bytes later than it did. */
inline_always _Bool fast_write_inner(struct xdp_md *ctx, const struct packet *p, const struct service *service,
				     const struct server *server, __u32 grow, _Bool restores, __u32 restored)
{
	void *data = (void *)(long)ctx->data + (grow & 0x7f), *end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp = data + FAST_L4(p->ipv6);
	__be32 *echo = data + FAST_ECHO(p->ipv6);
	struct packet at = *p;

	if (restores) {
		if ((void *)(echo + 1) > end)
			return 0;
		write_timestamp(tcp, echo, 0, restored);
	}
	if (service->forward != FORWARD_NAT)
		return 1;
	at.l3 = FAST_IP;
	at.l4 = FAST_L4(p->ipv6);
	return nat_rewrite(&at, data, end, 0, server->address, server->port);
}

/* The same in lb_rewritten. */
inline_always int fast_rewrite(struct xdp_md *ctx, const struct packet *p, const struct decision *d,
			       const struct finding *f, enum verdict verdict)
{
	const struct service *service = d->service;
	const struct server *server = d->server;
	_Bool restores = verdict == FORWARDED_BY_COOKIE && p->protocol == IPPROTO_TCP;
	volatile __u8 grow; /* unknown to the verifier: it walks what follows once, and not for each length */
	__u32 restored = 0;

	if (!server || !(server->flags & SERVER_NEXT_HOP) || server->flags & SERVER_NO_COOKIE)
		return NOT_FAST;
	if (p->length > server->mtu || (restores && !fast_restored(ctx, p, service, server, &restored)))
		return NOT_FAST;
	grow = l2_length(server) - sizeof(struct ethhdr);
	if (grow && bpf_xdp_adjust_head(ctx, -(int)grow))
		return NOT_FAST;
	verdict = fast_commit(p, d, f, verdict);
	if (verdict == VERDICT_CONTINUE) {
		if (grow && bpf_xdp_adjust_head(ctx, (int)grow))
			return XDP_ABORTED; /* what has grown can shrink */
		return NOT_FAST;
	}
	if (!fast_count(p, d, server, verdict))
		return XDP_DROP;
	if (!fast_write_inner(ctx, p, service, server, grow, restores, restored) ||
	    !l2_write(ctx, server, bpf_htons(p->ipv6 ? ETH_P_IPV6 : ETH_P_IP)))
		return XDP_ABORTED; /* the verifier does not know what has been seen before */
	return transmit(ctx, server);
}

/* To d->server, because of the verdict. Nothing has changed yet, except that it may have taken a turn. `more`: see
 * fast_frame.h. */
inline_always int fast_send(struct xdp_md *ctx, const struct packet *p, const struct decision *d,
			    const struct finding *f, enum verdict verdict, volatile __u8 *more)
{
	int action = !more ? fast_rewrite(ctx, p, d, f, verdict) : fast_try(ctx, p, d, f, verdict);

	if (action == NOT_FAST && f->turn)
		keep_turn(d->service, f->turn);
	if (action == NOT_FAST && more && !d->server &&
	    (d->service->flags & (SERVICE_SESSION | SERVICE_GUARDED)) == SERVICE_SESSION)
		*more = MORE_SESSION;
	return action;
}
