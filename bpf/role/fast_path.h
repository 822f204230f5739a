/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fast_path.h - the shortest way, for most packets: an established connection's, IPv4, with the cookie where all stacks put it, to its server by IP in IP.
 *
 * Does to a packet what usual_way does, or returns UNUSUAL before anything has changed: TestTheFastPathDoesWhatTheLongWayDoes holds it to that.
 * It needs no struct packet, and only one look-up after the other from the destination to the key: the place of a destination names the row.
 */
#pragma once

#define UNUSUAL (-1)

/* Bytes of Ethernet, IPv4, TCP, NOP NOP TS. */
#define FAST_IP sizeof(struct ethhdr)
#define FAST_TCP (FAST_IP + sizeof(struct iphdr))
#define FAST_OPTIONS (FAST_TCP + sizeof(struct tcphdr))
#define FAST_END (FAST_OPTIONS + 12)

/* No IP options, no fragment, TCP; NOP NOP TS and no other option; neither FIN nor SYN nor RST. Ethernet has been seen. */
inline_always _Bool has_fast_shape(const void *data)
{
	return *(const __u8 *)(data + FAST_IP) == 0x45 &&
	       (*(const __be32 *)(data + FAST_IP + 6) & bpf_htonl((IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET) << 16 | 0xff)) == bpf_htonl(IPPROTO_TCP) &&
	       (*(const __be16 *)(data + FAST_TCP + 12) & bpf_htons(0xf000 | TCP_FLAG_FIN_BIT | TCP_FLAG_SYN_BIT | TCP_FLAG_RST_BIT)) ==
		       bpf_htons(0x8000) &&
	       *(const __be32 *)(data + FAST_OPTIONS) == bpf_htonl(0x0101080a);
}

inline_always const struct server *fast_server(const struct service *service, const void *data, __u64 ends, __u32 echo, __u8 parity)
{
	struct packet p = { .source = { *(const __be32 *)(data + FAST_IP + 12) }, .source_port = ends >> 32, .destination_port = ends >> 48 };
	__u16 plain;

	return server_by_id(service, cookie_find(&p, service, echo, parity, &plain));
}

/* The frame is for us, and untagged IPv4. */
inline_always int fast_path(struct xdp_md *ctx, void *data, void *end)
{
	const struct vip_place *place;
	const struct service *service;
	const struct server *server;
	__u32 fast, row, length, echo;
	__u64 ends; /* destination address, ports */
	__be32 begin; /* of the IP header, behind the type of Ethernet */

	if (data + FAST_END > end || !has_fast_shape(data))
		return UNUSUAL;
	begin = *(__be32 *)(data + FAST_IP - 2);
	length = bpf_ntohs(*(__be16 *)(data + FAST_IP + 2));
	if (length < FAST_END - FAST_IP || FAST_IP + length > end - data)
		return UNUSUAL;
	ends = *(__u64 *)(data + FAST_IP + 16);
	place = find_vip_place((ends & 0xffff0000ffffffff) | vip_destination(0, 0, IPPROTO_TCP));
	echo = bpf_ntohl(*(__be32 *)(data + FAST_END - 4));
	if (!place || !echo)
		return UNUSUAL;
	fast = *(const volatile __u32 *)&place->fast; /* once: it may flip */
	row = fast >> FAST_ROW_SHIFT;
	service = bpf_map_lookup_elem(&services, &row);
	if (!fast || !service)
		return UNUSUAL;
	server = fast_server(service, data, ends, echo, echo >> (fast & 15) & 1);
	if (!server || server->flags != SERVER_NEXT_HOP || server->vlan || length + sizeof(struct iphdr) > server->mtu ||
	    bpf_xdp_adjust_head(ctx, -(int)sizeof(struct iphdr)))
		return UNUSUAL;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + FAST_TCP > end) /* the verifier does not know that the frame has grown */
		return XDP_ABORTED;
	count_fast(server->counter, length);
	write_untagged_ipv4(data, server->destination_mac, begin, length + sizeof(struct iphdr), server->path, IPPROTO_IPIP, server->source[0],
			    server->address[0]);
	return transmit(ctx, server);
}
