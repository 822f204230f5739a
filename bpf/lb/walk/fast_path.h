/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fast_path.h - the shortest way, for most packets: TCP, to its server by IP in IP or GUE: an established connection's, with the cookie where all stacks
 * put it, or a column, a new one's with a timestamp, and all of a service by hash.
 *
 * Does to a packet what usual_way does, or returns UNUSUAL before anything has changed: TestTheFastPathDoesWhatTheLongWayDoes holds it to that.
 * It needs no struct packet in memory, and only one look-up after the other from the destination to the key: the place of a destination names the row.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/parse.h"
#include "wire/timestamp.h"
#include "lb/state/counters.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/state/vips.h"
#include "lb/affinity/cookie.h"
#include "lb/affinity/decision.h"
#include "lb/ladder/dispatched.h"
#include "lb/ladder/ladder.h"
#include "lb/ladder/placed.h"
#include "lb/send/encapsulate.h"
#include "lb/send/l2.h"

#define UNUSUAL (-1)

/* Where in the frame TCP or UDP, and TCP's options begin, and what NOP NOP TS has of them. ipv6 is a constant wherever it stands here. */
#define FAST_IP sizeof(struct ethhdr)
#define FAST_L4(ipv6) (FAST_IP + ((ipv6) ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)))
#define FAST_OPTIONS(ipv6) (FAST_L4(ipv6) + sizeof(struct tcphdr))
#define FAST_TIMESTAMPS 12

/* No IP options or extension headers, no fragment, that protocol. Ethernet has been seen. */
inline_always _Bool has_fast_shape(const void *data, _Bool ipv6, __u8 protocol)
{
	if (ipv6)
		return (*(const __u8 *)(data + FAST_IP) & 0xf0) == 0x60 && *(const __u8 *)(data + FAST_IP + 6) == protocol;
	return *(const __u8 *)(data + FAST_IP) == 0x45 &&
	       (*(const __be32 *)(data + FAST_IP + 6) & bpf_htonl((IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET) << 16 | 0xff)) == bpf_htonl(protocol);
}

/* Of the IP packet. */
inline_always __u32 fast_length(const void *data, _Bool ipv6)
{
	return ipv6 ? bpf_ntohs(*(const __be16 *)(data + FAST_IP + 4)) + sizeof(struct ipv6hdr) : bpf_ntohs(*(const __be16 *)(data + FAST_IP + 2));
}

/* An established connection's TSecr: behind NOP NOP TS and TSval, and no other option; neither FIN nor SYN nor RST. 0: another segment, or no echo. */
inline_always __u32 fast_echo(const void *data, const void *end, __u32 length, _Bool ipv6)
{
	const void *options = data + FAST_OPTIONS(ipv6);

	if (options + FAST_TIMESTAMPS > end || length < FAST_OPTIONS(ipv6) + FAST_TIMESTAMPS - FAST_IP ||
	    (*(const __be16 *)(data + FAST_L4(ipv6) + 12) & bpf_htons(0xf000 | TCP_FLAG_FIN_BIT | TCP_FLAG_SYN_BIT | TCP_FLAG_RST_BIT)) != bpf_htons(0x8000) ||
	    *(const __be32 *)options != bpf_htonl(0x0101080a))
		return 0;
	return bpf_ntohl(*(const __be32 *)(options + 8));
}

/* A SYN whose options have one of the usual orders, with a timestamp. */
inline_always _Bool is_fast_syn(const struct tcphdr *tcp, const void *end, __u8 tcp_flags)
{
	return (tcp_flags & (TCP_FLAG_FIN_BIT | TCP_FLAG_SYN_BIT | TCP_FLAG_RST_BIT | TCP_FLAG_ACK_BIT)) == TCP_FLAG_SYN_BIT && timestamp_fast(tcp, end);
}

inline_always struct packet fast_packet(const void *data, __u32 length, _Bool ipv6, __u8 protocol)
{
	struct packet p = {
		.source_port = *(const __be16 *)(data + FAST_L4(ipv6)),
		.destination_port = *(const __be16 *)(data + FAST_L4(ipv6) + 2),
		.length = length,
		.ipv6 = ipv6,
		.protocol = protocol,
		.tcp_flags = protocol == IPPROTO_TCP ? *(const __u8 *)(data + FAST_L4(ipv6) + 13) : 0,
		.tos = ipv6 ? bpf_ntohs(*(const __be16 *)(data + FAST_IP)) >> 4 : *(const __u8 *)(data + FAST_IP + 1),
	};

	const __be32 *source = data + FAST_IP + (ipv6 ? 8 : 12); /* copied by words: the compiler trusts no alignment here */

	for (int i = 0; i < (ipv6 ? 4 : 1); i++)
		p.source[i] = source[i];
	return p;
}

/* The row of the destination's service. *fast: see struct vip_place. */
inline_always const struct service *fast_service(const void *data, _Bool ipv6, __u8 protocol, __u32 *fast)
{
	__be16 port = *(const __be16 *)(data + FAST_L4(ipv6) + 2);
	const __u64 *destination = data + FAST_IP + (ipv6 ? 24 : 16);
	const struct service *service;
	const struct vip_place *place;
	__u32 row;

	if (ipv6)
		place = find_vip_place(vip_destination6(destination, port, protocol));
	else
		place = find_vip_place((*destination & 0xffff0000ffffffff) | vip_destination(0, 0, protocol));
	if (!place)
		return 0;
	*fast = *(const volatile __u32 *)&place->fast; /* once: it may flip */
	row = (*fast & ~FAST_OTHERS) >> FAST_ROW_SHIFT;
	service = bpf_map_lookup_elem(&services, &row);
	if (!*fast || !service || (ipv6 && !is_vip6(service, destination)))
		return 0;
	return service;
}

/* To d->server, because of the verdict, which is a constant. Nothing has changed yet. */
inline_always int fast_send(struct xdp_md *ctx, const struct packet *p, const struct decision *d, const struct finding *f, enum verdict verdict)
{
	const struct server *server = d->server;
	_Bool ipv6, written, gue = d->service->forward == FORWARD_GUE;
	__u32 outer;

	if (!server || !(server->flags & SERVER_NEXT_HOP) || server->flags & SERVER_NO_COOKIE || server->vlan)
		return UNUSUAL;
	ipv6 = server->flags & SERVER_IPV6;
	outer = outer_length(server, gue, 0);
	if (p->length + outer > server->mtu || bpf_xdp_adjust_head(ctx, -(int)outer))
		return UNUSUAL;
	if (verdict == FORWARDED_BY_COOKIE) {
		count_fast(server->counter, p->length);
	} else {
		if (verdict == FORWARDED_NEW)
			dispatch_commit(d, f);
		count_server(server->counter, is_syn(p), verdict == FORWARDED_NEW, p->length);
		count_verdict(d->service->number, verdict, p->length);
	}
	if (gue)
		written = ipv6 ? write_untagged(ctx, p, server, 1, 1) : write_untagged(ctx, p, server, 0, 1);
	else
		written = ipv6 ? write_untagged(ctx, p, server, 1, 0) : write_untagged(ctx, p, server, 0, 0);
	if (!written)
		return XDP_ABORTED; /* the verifier does not know that the frame has grown */
	return transmit(ctx, server);
}

inline_always int fast_by_cookie(struct xdp_md *ctx, struct decision *d, const void *data, __u32 echo, __u8 parity, __u32 length, _Bool ipv6)
{
	const struct packet p = fast_packet(data, length, ipv6, IPPROTO_TCP);
	struct finding f = {};

	steer_to(d, cookie_find(&p, d->service, echo, parity, &d->carried.plain));
	return fast_send(ctx, &p, d, &f, FORWARDED_BY_COOKIE);
}

inline_always int fast_others(struct xdp_md *ctx, struct decision *d, const void *data, const void *end, __u32 echo, __u32 length, _Bool ipv6)
{
	const struct packet p = fast_packet(data, length, ipv6, IPPROTO_TCP);
	const struct tcphdr *tcp = data + FAST_L4(ipv6);
	enum verdict verdict = FORWARDED_BY_HASH;
	struct finding f = {};

	if (tcp->doff < 5 || FAST_L4(ipv6) - FAST_IP + tcp->doff * 4 > length)
		return UNUSUAL;
	if (d->service->affinity == AFFINITY_HISTORY) {
		if (!echo || !steer_to_column(&p, d, echo))
			return UNUSUAL;
		verdict = FORWARDED_BY_HISTORY;
	} else if (d->service->affinity == AFFINITY_COOKIE) {
		/* candidates are stops; sessions begin elsewhere */
		if (!is_fast_syn(tcp, end, p.tcp_flags) || d->service->columns > 1 || d->service->flags & SERVICE_SESSION)
			return UNUSUAL;
		verdict = FORWARDED_NEW;
	}
	if (verdict == FORWARDED_BY_HISTORY)
		; /* it has its server */
	else if (verdict == FORWARDED_BY_HASH || dispatched_by_placement(d->service))
		steer_by_placement(&p, d);
	else
		steer_by_dispatch(d, &f);
	if (d->stops_count)
		return UNUSUAL;
	return fast_send(ctx, &p, d, &f, verdict);
}

/* The frame is for us, and untagged. */
inline_always int fast_path(struct xdp_md *ctx, _Bool ipv6)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct decision d = {};
	__u32 fast, length, echo;

	if (data + FAST_OPTIONS(ipv6) > end || !has_fast_shape(data, ipv6, IPPROTO_TCP))
		return UNUSUAL;
	length = fast_length(data, ipv6);
	if (FAST_IP + length > end - data)
		return UNUSUAL;
	d.service = fast_service(data, ipv6, IPPROTO_TCP, &fast);
	if (!d.service)
		return UNUSUAL;
	echo = d.service->affinity == AFFINITY_HASH ? 0 : fast_echo(data, end, length, ipv6);
	if (echo && d.service->affinity != AFFINITY_HISTORY)
		return fast_by_cookie(ctx, &d, data, echo, echo >> (fast & 15) & 1, length, ipv6);
	return fast_others(ctx, &d, data, end, echo, length, ipv6);
}
