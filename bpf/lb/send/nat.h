/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* nat.h - rewrites the destination towards the server and the source towards the client, whose address stays. */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/parse.h"
#include "wire/reversed.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/send/l2.h"

/* Where the checksum of the transport header lies, or 0: none to keep. */
inline_always __sum16 *transport_checksum(const struct packet *p, void *data, void *end)
{
	struct tcphdr *tcp = packet_at(data, p->l4);
	struct udphdr *udp = packet_at(data, p->l4);

	if (p->fragment == FRAGMENT_LATER)
		return 0;
	if (p->protocol == IPPROTO_TCP)
		return (void *)(tcp + 1) <= end ? &tcp->check : 0;
	if ((void *)(udp + 1) > end || !udp->check) /* RFC 768, RFC 6935: there is none */
		return 0;
	return &udp->check;
}

inline_always void nat_replace_address(__be32 *address, const __be32 new[4], __u32 words, __sum16 *ip,
				       __sum16 *transport)
{
#pragma unroll
	for (__u32 i = 0; i < 4; i++) {
		if (i >= words)
			break;
		if (ip)
			checksum_replace32(ip, address[i], new[i]);
		if (transport)
			checksum_replace32(transport, address[i], new[i]);
		address[i] = new[i];
	}
}

/* Replace source or destination of a packet whose headers are linear. port 0: as it is. */
inline_always _Bool nat_rewrite(const struct packet *p, void *data, void *end, _Bool source, const __be32 address[4],
				__be16 port)
{
	struct ipv6hdr *ipv6 = packet_at(data, p->l3);
	struct iphdr *ipv4 = packet_at(data, p->l3);
	__sum16 *check;
	__be16 *ports = packet_at(data, p->l4);

	if ((void *)(ipv4 + 1) > end)
		return 0;
	check = transport_checksum(p, data, end);
	if (p->ipv6) {
		if ((void *)(ipv6 + 1) > end)
			return 0;
		nat_replace_address(source ? ipv6->saddr.in6_u.u6_addr32 : ipv6->daddr.in6_u.u6_addr32, address, 4, 0,
				    check);
	} else
		nat_replace_address(source ? &ipv4->saddr : &ipv4->daddr, address, 1, &ipv4->check, check);
	if (port && p->fragment != FRAGMENT_LATER) {
		if ((void *)(ports + 2) > end)
			return 0;
		ports += !source;
		if (check)
			checksum_replace16(check, *ports, port);
		*ports = port;
	}
	if (check && !*check && p->protocol == IPPROTO_UDP)
		*check = 0xffff; /* RFC 768: 0 would mean that there is none */
	return 1;
}

/* An ICMP error: the packet that it quotes is known to the server by its own address and port, and to its client by the
 * service's. To the server: about what that has sent. Else to the client: about what it has sent, by the server or a
 * router before it. The quoted transport checksum stays wrong: it may be cut off, and nobody verifies it. */
inline_always _Bool nat_rewrite_error(const struct packet *p, void *data, void *end, _Bool to_server,
				      const __be32 address[4], __be16 port)
{
	struct icmp_header *icmp = packet_at(data, p->l4);
	struct ipv6hdr *ipv6 = packet_at(data, p->l3), *quoted_ipv6 = (void *)(icmp + 1);
	struct iphdr *ipv4 = packet_at(data, p->l3), *quoted_ipv4 = (void *)(icmp + 1);
	__be16 *ports = p->ipv6 ? (void *)(quoted_ipv6 + 1) : (void *)(quoted_ipv4 + 1);
	__be32 *outer, *quoted;
	__sum16 quoted_check;

	asm volatile("" : "+r"(ports)); /* pinned: what is compared with end is what is written to */
	if ((void *)(ipv6 + 1) > end || (void *)(quoted_ipv4 + 1) > end || (void *)(ports + 2) > end)
		return 0;
	if (p->ipv6) {
		if ((void *)(quoted_ipv6 + 1) > end || quoted_ipv6->nexthdr == IPPROTO_FRAGMENT)
			return 0;
		outer = to_server ? ipv6->daddr.in6_u.u6_addr32 : ipv6->saddr.in6_u.u6_addr32;
		quoted = to_server ? quoted_ipv6->saddr.in6_u.u6_addr32 : quoted_ipv6->daddr.in6_u.u6_addr32;
		if (to_server || !__builtin_memcmp(outer, quoted, 16))
			nat_replace_address(outer, address, 4, 0, &icmp->checksum);
		nat_replace_address(quoted, address, 4, 0, &icmp->checksum);
	} else {
		outer = to_server ? &ipv4->daddr : &ipv4->saddr;
		quoted = to_server ? &quoted_ipv4->saddr : &quoted_ipv4->daddr;
		quoted_check = quoted_ipv4->check;
		if (to_server || *outer == *quoted)
			nat_replace_address(outer, address, 1, &ipv4->check, 0);
		nat_replace_address(quoted, address, 1, &quoted_ipv4->check, &icmp->checksum);
		checksum_replace16(&icmp->checksum, quoted_check, quoted_ipv4->check);
	}
	if (port) {
		ports += !to_server;
		checksum_replace16(&icmp->checksum, *ports, port);
		*ports = port;
	}
	return 1;
}

/* Global functions: verified once, not for every way that leads here. */
__noinline int nat_to_server(struct xdp_md *ctx, const struct packet *p, const struct server *server)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (!p || !server)
		return 0;
	if (is_icmp(p))
		return nat_rewrite_error(p, data, end, 1, server->address, server->port);
	return nat_rewrite(p, data, end, 0, server->address, server->port);
}

__noinline int nat_to_client(struct xdp_md *ctx, const struct packet *p, const struct service *service)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (!p || !service)
		return 0;
	if (is_icmp(p))
		return nat_rewrite_error(p, data, end, 0, service->vip, service->port);
	return nat_rewrite(p, data, end, 1, service->vip, service->port);
}

inline_always enum verdict send_nat(struct xdp_md *ctx, const struct packet *p, const struct server *server,
				    enum verdict why)
{
	if (!nat_to_server(ctx, p, server))
		return DROPPED_MALFORMED;
	return send_l2(ctx, p, server, why);
}
