/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* encapsulate.h - IP in IP (RFC 2003, 2473) and GUE (draft-ietf-intarea-gue), either family in either family. */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/choices.h"
#include "wire/gue.h"
#include "wire/parse.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"
#include "lb/send/l2.h"

/* Without stops. */
inline_always _Bool is_ip_in_ip(enum forward forward)
{
	return forward == FORWARD_IPIP || forward == FORWARD_SRV6;
}

inline_always __u32 outer_length(const struct server *server, _Bool gue, __u32 stops)
{
	_Bool ipv6 = server->flags & SERVER_IPV6;
	__u32 length = ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	if (gue)
		length += sizeof(struct udphdr) + sizeof(struct gue_header);
	return length + gue_stops_length(stops, ipv6);
}

inline_always void *outer_ipv4(void *at, void *end, const struct packet *p, const struct server *server, __u8 protocol,
			       __u32 outer)
{
	struct iphdr *ip = at;

	if ((void *)(ip + 1) > end)
		return 0;
	write_ipv4_header(ip, p->tos, p->length + outer, bpf_ntohs(server->path), 1, protocol, server->source[0],
			  server->address[0]);
	return ip + 1;
}

/* The flow label spreads connections over equal paths and receive queues (RFC 6438), and nobody can guess it:
 * internal/algo/pathid. */
inline_always void *outer_ipv6(void *at, void *end, const struct packet *p, const struct server *server, __u8 protocol,
			       __u32 outer, __u16 entropy)
{
	struct ipv6hdr *ip = at;

	if ((void *)(ip + 1) > end)
		return 0;
	*(__be32 *)ip = bpf_htonl(6u << 28 | (__u32)p->tos << 20 | (server->path ^ entropy) * 0x85ebca6b >> 12);
	ip->payload_len = bpf_htons(p->length + outer - sizeof(*ip));
	ip->nexthdr = protocol;
	ip->hop_limit = 64;
	__builtin_memcpy(&ip->saddr, server->source, 16);
	__builtin_memcpy(&ip->daddr, server->address, 16);
	return ip + 1;
}

inline_always void *outer_ip(struct xdp_md *ctx, const struct packet *p, const struct server *server, __u8 protocol,
			     __u32 outer, __u16 entropy, _Bool ipv6)
{
	void *at = l2_write(ctx, server, bpf_htons(ipv6 ? ETH_P_IPV6 : ETH_P_IP));
	void *end = (void *)(long)ctx->data_end;

	if (!at)
		return 0;
	return ipv6 ? outer_ipv6(at, end, p, server, protocol, outer, entropy)
		    : outer_ipv4(at, end, p, server, protocol, outer);
}

inline_always __u16 flow_entropy(const struct packet *p)
{
	__u32 mix = p->source[0] ^ p->source[3] ^ (__u32)p->source_port << 16 ^ p->destination_port;

	mix *= 0x9e3779b1;
	return mix >> 16;
}

/* To a next hop without a tag, without stops. There is room. */
inline_always _Bool write_untagged(struct xdp_md *ctx, const struct packet *p, const struct server *server, _Bool ipv6,
				   _Bool gue)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u8 protocol = gue ? IPPROTO_UDP : p->ipv6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	__u32 behind = gue ? sizeof(struct udphdr) + sizeof(struct gue_header) : 0;
	__u16 entropy = flow_entropy(p);
	struct ethhdr *eth = data;
	void *next;

	if (data + sizeof(*eth) + sizeof(struct iphdr) > end)
		return 0;
	if (ipv6) {
		l2_write_addresses(data, server);
		eth->h_proto = bpf_htons(ETH_P_IPV6);
		next = outer_ipv6(eth + 1, end, p, server, protocol, sizeof(struct ipv6hdr) + behind, entropy);
	} else {
		write_untagged_ipv4(data, server->destination_mac, bpf_htonl(ETH_P_IP << 16 | 0x4500 | p->tos),
				    p->length + sizeof(struct iphdr) + behind, server->path, protocol,
				    server->source[0], server->address[0]);
		next = data + sizeof(*eth) + sizeof(struct iphdr);
	}
	return next && (!gue || gue_write_headers(next, end, p->ipv6, p->length + behind, entropy, 0));
}

inline_always enum verdict send_in_family(struct xdp_md *ctx, const struct packet *p, const struct server *server,
					  enum verdict why, _Bool ipv6)
{
	__u32 outer = ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	if (l2_make_room(ctx, p, server, outer))
		return DROPPED_NO_HEADROOM;
	if (!server->vlan)
		return write_untagged(ctx, p, server, ipv6, 0) ? why : DROPPED_MALFORMED;
	if (!outer_ip(ctx, p, server, p->ipv6 ? IPPROTO_IPV6 : IPPROTO_IPIP, outer, flow_entropy(p), ipv6))
		return DROPPED_MALFORMED;
	return why;
}

/* Each family inlined apart: the flag is tested once. */
inline_always enum verdict send_ipip(struct xdp_md *ctx, const struct packet *p, const struct server *server,
				     enum verdict why)
{
	return server->flags & SERVER_IPV6 ? send_in_family(ctx, p, server, why, 1)
					   : send_in_family(ctx, p, server, why, 0);
}

/* The addresses of the stops. One that is of another family, or gone, repeats the address before: agents skip their
 * own, and every stop keeps its place. */
inline_always _Bool gue_write_stops(void *at, void *end, const struct service *service, const struct server *server,
				    const struct decision *d, _Bool ipv6)
{
	struct gue_stops *stops = at;
	__u32 size = ipv6 ? 16 : 4;

	if ((void *)(stops + 1) > end)
		return 0;
	stops->type = GUE_PRIVATE_STOPS;
	stops->next = d->next;
	stops->count = d->stops_count;
	stops->reserved = 0;
	at += sizeof(*stops);
	for (__u32 i = 0; i < STOPS_MAX; i++) {
		const struct server *stop = server_by_id(service, d->stops[i]);

		if (i >= d->stops_count && i >= STOPS_MIN)
			break;
		if (at + size > end)
			return 0;
		if (stop && !((stop->flags ^ server->flags) & SERVER_IPV6))
			server = stop;
		if (i >= d->stops_count)
			__builtin_memset(at, 0, size);
		else if (ipv6)
			__builtin_memcpy(at, server->address, 16);
		else
			*(__be32 *)at = server->address[0];
		at += size;
	}
	return 1;
}

/* A global function: verified once. Returns an enum verdict, VERDICT_CONTINUE if all is well. */
__noinline int gue_wrap(struct xdp_md *ctx, const struct packet *p, const struct service *service,
			const struct server *server, const struct decision *d)
{
	__u32 outer, stops;
	struct udphdr *udp;
	__u16 entropy;
	_Bool ipv6;
	void *end;

	if (!p || !service || !server || !d)
		return DROPPED_MALFORMED;
	ipv6 = server->flags & SERVER_IPV6;
	outer = outer_length(server, 1, d->stops_count);
	stops = gue_stops_length(d->stops_count, ipv6);
	entropy = flow_entropy(p);
	if (l2_make_room(ctx, p, server, outer))
		return DROPPED_NO_HEADROOM;
	udp = outer_ip(ctx, p, server, IPPROTO_UDP, outer, entropy, ipv6);
	end = (void *)(long)ctx->data_end;
	if (!udp || !gue_write_headers(udp, end, p->ipv6,
				       p->length + outer - (ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)),
				       entropy, stops / 4))
		return DROPPED_MALFORMED;
	udp = (void *)(udp + 1) + sizeof(struct gue_header);
	if (stops && !(ipv6 ? gue_write_stops(udp, end, service, server, d, 1)
			    : gue_write_stops(udp, end, service, server, d, 0)))
		return DROPPED_MALFORMED;
	return VERDICT_CONTINUE;
}

inline_always enum verdict send_gue(struct xdp_md *ctx, const struct packet *p, const struct service *service,
				    const struct server *server, const struct decision *d)
{
	enum verdict verdict = gue_wrap(ctx, p, service, server, d);

	return verdict == VERDICT_CONTINUE ? d->verdict : verdict;
}
