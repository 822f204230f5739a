/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fast_path.h - the shortest way, for most packets: IPv4, TCP, to its server by IP in IP: an established connection's, with the cookie where all stacks
 * put it, and all of a service by hash.
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

/* Sets d->server, and says why. Changes nothing. */
inline_always enum verdict fast_find(struct decision *d, const void *data, const void *end, __u32 length, __u32 fast)
{
	const __u8 *tcp = data + FAST_TCP;
	struct packet p = {
		.source = { *(const __be32 *)(data + FAST_IP + 12) },
		.source_port = *(const __be16 *)tcp,
		.destination_port = *(const __be16 *)(tcp + 2),
		.protocol = IPPROTO_TCP,
		.tcp_flags = tcp[13],
	};
	__u32 echo;

	if (d->service->affinity == AFFINITY_HASH) {
		if (tcp[12] >> 4 >= 5 && sizeof(struct iphdr) + (tcp[12] >> 4) * 4 <= length)
			steer_by_placement(&p, d);
		return FORWARDED_BY_HASH;
	}
	echo = fast_echo(data, end, length);
	if (echo)
		steer_to(d, cookie_find(&p, d->service, echo, echo >> (fast & 15) & 1, &d->carried.plain));
	return FORWARDED_BY_COOKIE;
}

inline_always void fast_count(const struct decision *d, enum verdict verdict, _Bool syn, __u32 length)
{
	if (verdict == FORWARDED_BY_COOKIE) {
		count_fast(d->server->counter, length);
		return;
	}
	count_server(d->server->counter, syn, verdict == FORWARDED_NEW, length);
	count_verdict(d->service->number, verdict, length);
}

/* The frame is for us, and untagged IPv4. */
inline_always int fast_path(struct xdp_md *ctx, void *data, void *end)
{
	struct decision d = {};
	const struct vip_place *place;
	__u32 fast, row, length;
	__u8 tcp_flags;
	__u64 ends; /* destination address, ports */
	__be32 begin; /* of the IP header, behind the type of Ethernet */
	enum verdict verdict;

	if (data + FAST_OPTIONS > end || !has_fast_shape(data))
		return UNUSUAL;
	begin = *(__be32 *)(data + FAST_IP - 2);
	length = bpf_ntohs(*(__be16 *)(data + FAST_IP + 2));
	tcp_flags = *(__u8 *)(data + FAST_TCP + 13);
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
	verdict = fast_find(&d, data, end, length, fast);
	if (!d.server || d.stops[0] | d.stops[1] || d.server->flags != SERVER_NEXT_HOP || d.server->vlan ||
	    length + sizeof(struct iphdr) > d.server->mtu || bpf_xdp_adjust_head(ctx, -(int)sizeof(struct iphdr)))
		return UNUSUAL;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + FAST_TCP > end) /* the verifier does not know that the frame has grown */
		return XDP_ABORTED;
	fast_count(&d, verdict, (tcp_flags & (TCP_FLAG_SYN_BIT | TCP_FLAG_ACK_BIT)) == TCP_FLAG_SYN_BIT, length);
	write_untagged_ipv4(data, d.server->destination_mac, begin, length + sizeof(struct iphdr), d.server->path, IPPROTO_IPIP, d.server->source[0],
			    d.server->address[0]);
	return transmit(ctx, d.server);
}
