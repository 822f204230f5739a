/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* nat.h - rewrite the destination on the way to the server and the source on the way back; the client's address stays. */
#pragma once

/* Where the checksum of the transport header lies, or 0: none to keep. */
inline_always __sum16 *transport_checksum(const struct packet *p, void *data, void *end)
{
	struct tcphdr *tcp = packet_at(data, p->l4);
	struct udphdr *udp = packet_at(data, p->l4);

	if (p->fragment == FRAGMENT_LATER)
		return 0;
	if (p->protocol == IPPROTO_TCP)
		return (void *)(tcp + 1) <= end ? &tcp->check : 0;
	if ((void *)(udp + 1) > end || (!udp->check && !p->ipv6))
		return 0;
	return &udp->check;
}

inline_always void nat_replace_address(__be32 *address, const __be32 new[4], __u32 words, __sum16 *ip, __sum16 *transport)
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

	if ((void *)(ipv4 + 1) > end || (p->ipv6 && (void *)(ipv6 + 1) > end))
		return 0;
	check = transport_checksum(p, data, end);
	if (p->ipv6)
		nat_replace_address(source ? ipv6->saddr.in6_u.u6_addr32 : ipv6->daddr.in6_u.u6_addr32, address, 4, 0, check);
	else
		nat_replace_address(source ? &ipv4->saddr : &ipv4->daddr, address, 1, &ipv4->check, check);
	if (!port || p->fragment == FRAGMENT_LATER)
		return 1;
	if ((void *)(ports + 2) > end)
		return 0;
	ports += !source;
	if (check)
		checksum_replace16(check, *ports, port);
	*ports = port;
	return 1;
}

inline_always enum verdict send_nat(struct xdp_md *ctx, const struct packet *p, const struct server *server, enum verdict why)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (!nat_rewrite(p, data, end, 0, server->address, server->port))
		return DROPPED_MALFORMED;
	return send_l2(ctx, p, server, why);
}
