/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fast_path.h - the shortest way, for most packets: IPv4, TCP, to its server by IP in IP: an established connection's, with the cookie where all stacks
 * put it, a new one's with a timestamp, and all of a service by hash.
 *
 * Does to a packet what usual_way does, or returns UNUSUAL before anything has changed: TestTheFastPathDoesWhatTheLongWayDoes holds it to that.
 * It needs no struct packet in memory, and only one look-up after the other from the destination to the key: the place of a destination names the row.
 */
#pragma once

#define UNUSUAL (-1)

/* Bytes of Ethernet, IPv4, TCP, NOP NOP TS. */
#define FAST_IP sizeof(struct ethhdr)
#define FAST_TCP (FAST_IP + sizeof(struct iphdr))
#define FAST_OPTIONS (FAST_TCP + sizeof(struct tcphdr))
#define FAST_END (FAST_OPTIONS + 12)

/* No IP options, no fragment, TCP. Ethernet has been seen. */
inline_always _Bool has_fast_shape(const void *data)
{
	return *(const __u8 *)(data + FAST_IP) == 0x45 &&
	       (*(const __be32 *)(data + FAST_IP + 6) & bpf_htonl((IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET) << 16 | 0xff)) == bpf_htonl(IPPROTO_TCP);
}

/* Where an established connection's TSecr is: behind NOP NOP TS and TSval, and no other option; neither FIN nor SYN nor RST. 0: another segment, or no echo. */
inline_always __u32 fast_echo(const void *data, const void *end, __u32 length)
{
	if (data + FAST_END > end || length < FAST_END - FAST_IP ||
	    (*(const __be16 *)(data + FAST_TCP + 12) & bpf_htons(0xf000 | TCP_FLAG_FIN_BIT | TCP_FLAG_SYN_BIT | TCP_FLAG_RST_BIT)) != bpf_htons(0x8000) ||
	    *(const __be32 *)(data + FAST_OPTIONS) != bpf_htonl(0x0101080a))
		return 0;
	return bpf_ntohl(*(const __be32 *)(data + FAST_END - 4));
}

/* A SYN whose options have one of the usual orders, with a timestamp. */
inline_always _Bool is_fast_syn(const struct tcphdr *tcp, const void *end, __u8 tcp_flags)
{
	return (tcp_flags & (TCP_FLAG_FIN_BIT | TCP_FLAG_SYN_BIT | TCP_FLAG_RST_BIT | TCP_FLAG_ACK_BIT)) == TCP_FLAG_SYN_BIT && timestamp_fast(tcp, end);
}

inline_always struct packet fast_packet(const void *data)
{
	return (struct packet){
		.source = { *(const __be32 *)(data + FAST_IP + 12) },
		.source_port = *(const __be16 *)(data + FAST_TCP),
		.destination_port = *(const __be16 *)(data + FAST_TCP + 2),
		.protocol = IPPROTO_TCP,
		.tcp_flags = *(const __u8 *)(data + FAST_TCP + 13),
	};
}

/* To d->server, because of the verdict, which is a constant. Nothing has changed yet. */
inline_always int fast_send(struct xdp_md *ctx, const struct decision *d, const struct finding *f, enum verdict verdict, __be32 begin, __u32 length, _Bool syn)
{
	const struct server *server = d->server;
	void *data, *end;

	if (!server || server->flags != SERVER_NEXT_HOP || server->vlan || length + sizeof(struct iphdr) > server->mtu ||
	    bpf_xdp_adjust_head(ctx, -(int)sizeof(struct iphdr)))
		return UNUSUAL;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + FAST_TCP > end) /* the verifier does not know that the frame has grown */
		return XDP_ABORTED;
	if (verdict == FORWARDED_BY_COOKIE) {
		count_fast(server->counter, length);
	} else {
		if (verdict == FORWARDED_NEW)
			dispatch_commit(d, f);
		count_server(server->counter, syn, verdict == FORWARDED_NEW, length);
		count_verdict(d->service->number, verdict, length);
	}
	write_untagged_ipv4(data, server->destination_mac, begin, length + sizeof(struct iphdr), server->path, IPPROTO_IPIP, server->source[0],
			    server->address[0]);
	return transmit(ctx, server);
}

inline_always int fast_by_cookie(struct xdp_md *ctx, struct decision *d, const void *data, __u32 echo, __u8 parity, __be32 begin, __u32 length)
{
	const struct packet p = fast_packet(data);
	struct finding f = {};

	steer_to(d, cookie_find(&p, d->service, echo, parity, &d->carried.plain));
	return fast_send(ctx, d, &f, FORWARDED_BY_COOKIE, begin, length, 0);
}

inline_always int fast_others(struct xdp_md *ctx, struct decision *d, const void *data, const void *end, __be32 begin, __u32 length)
{
	const struct packet p = fast_packet(data);
	struct finding f = {};
	const struct tcphdr *tcp = data + FAST_TCP;
	enum verdict verdict = FORWARDED_BY_HASH;

	if (tcp->doff < 5 || sizeof(struct iphdr) + tcp->doff * 4 > length)
		return UNUSUAL;
	if (d->service->affinity == AFFINITY_COOKIE) {
		if (!is_fast_syn(tcp, end, p.tcp_flags))
			return UNUSUAL;
		verdict = FORWARDED_NEW;
	}
	if (verdict == FORWARDED_BY_HASH || dispatched_by_placement(d->service))
		steer_by_placement(&p, d);
	else
		steer_by_dispatch(d, &f);
	if (d->stops[0] | d->stops[1])
		return UNUSUAL;
	return fast_send(ctx, d, &f, verdict, begin, length, is_syn(&p));
}

/* The frame is for us, and untagged IPv4. */
inline_always int fast_path(struct xdp_md *ctx, void *data, void *end)
{
	struct decision d = {};
	const struct vip_place *place;
	__u32 fast, row, length, echo;
	__u64 ends; /* destination address, ports */
	__be32 begin; /* of the IP header, behind the type of Ethernet */

	if (data + FAST_OPTIONS > end || !has_fast_shape(data))
		return UNUSUAL;
	begin = *(__be32 *)(data + FAST_IP - 2);
	length = bpf_ntohs(*(__be16 *)(data + FAST_IP + 2));
	if (FAST_IP + length > end - data)
		return UNUSUAL;
	ends = *(__u64 *)(data + FAST_IP + 16);
	place = find_vip_place((ends & 0xffff0000ffffffff) | vip_destination(0, 0, IPPROTO_TCP));
	if (!place)
		return UNUSUAL;
	fast = *(const volatile __u32 *)&place->fast; /* once: it may flip */
	row = (fast & ~FAST_OTHERS) >> FAST_ROW_SHIFT;
	d.service = bpf_map_lookup_elem(&services, &row);
	if (!fast || !d.service)
		return UNUSUAL;
	echo = fast & FAST_OTHERS ? 0 : fast_echo(data, end, length);
	return echo ? fast_by_cookie(ctx, &d, data, echo, echo >> (fast & 15) & 1, begin, length) : fast_others(ctx, &d, data, end, begin, length);
}
