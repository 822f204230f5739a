/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fast_shape.h - the fast path's view of a frame: Ethernet without a tag, IP without options or extension headers, no
 * fragment. Where things lie is constant. It needs no struct packet in memory, and only one look-up after the other
 * from the destination to the key: the slot of a destination names the row. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "wire/timestamp.h"
#include "lb/state/service.h"
#include "lb/state/vips.h"

#define NOT_FAST (-1) /* what the fast path says of packets that are not for it; nothing has changed */

/* What lb learns of a packet that is not for its fast path: which other program it is for. The first two are bits of
 * FAST_MORE_SHIFT. */
enum { MORE_REPLICATED = 1, MORE_REWRITTEN = 2, MORE_SESSION = 4, MORE_SYN = 8 };

/* Where in the frame TCP or UDP, and TCP's options begin, and what NOP NOP TS has of them. ipv6 is a constant wherever
 * it stands here. */
#define FAST_IP sizeof(struct ethhdr)
#define FAST_L4(ipv6) (FAST_IP + ((ipv6) ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)))
#define FAST_OPTIONS(ipv6) (FAST_L4(ipv6) + sizeof(struct tcphdr))
#define FAST_TIMESTAMPS 12
#define FAST_ECHO(ipv6) (FAST_OPTIONS(ipv6) + 8)

/* No IP options or extension headers, no fragment, that protocol. Ethernet has been seen. */
inline_always _Bool has_fast_shape(const void *data, _Bool ipv6, __u8 protocol)
{
	if (ipv6)
		return (*(const __u8 *)(data + FAST_IP) & 0xf0) == 0x60 &&
		       *(const __u8 *)(data + FAST_IP + 6) == protocol;
	return *(const __u8 *)(data + FAST_IP) == 0x45 &&
	       (*(const __be32 *)(data + FAST_IP + 6) &
		bpf_htonl((IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET) << 16 | 0xff)) == bpf_htonl(protocol);
}

/* Of the IP packet. */
inline_always __u32 fast_length(const void *data, _Bool ipv6)
{
	return ipv6 ? bpf_ntohs(*(const __be16 *)(data + FAST_IP + 4)) + sizeof(struct ipv6hdr)
		    : bpf_ntohs(*(const __be16 *)(data + FAST_IP + 2));
}

/* An established connection's TSecr: behind NOP NOP TS and TSval, and no other option; neither FIN nor SYN nor RST. 0:
 * another segment, or no echo. */
inline_always __u32 fast_echo(const void *data, const void *end, __u32 length, _Bool ipv6)
{
	const void *options = data + FAST_OPTIONS(ipv6);

	if (options + FAST_TIMESTAMPS > end || length < FAST_OPTIONS(ipv6) + FAST_TIMESTAMPS - FAST_IP ||
	    (*(const __be16 *)(data + FAST_L4(ipv6) + 12) &
	     bpf_htons(0xf000 | TCP_FLAG_FIN_BIT | TCP_FLAG_SYN_BIT | TCP_FLAG_RST_BIT)) != bpf_htons(0x8000) ||
	    *(const __be32 *)options != bpf_htonl(0x0101080a))
		return 0;
	return bpf_ntohl(*(const __be32 *)(options + 8));
}

inline_always _Bool is_only_syn(__u8 tcp_flags)
{
	return (tcp_flags & (TCP_FLAG_FIN_BIT | TCP_FLAG_SYN_BIT | TCP_FLAG_RST_BIT | TCP_FLAG_ACK_BIT)) ==
	       TCP_FLAG_SYN_BIT;
}

/* A SYN whose options have one of the usual orders, with a timestamp. */
inline_always _Bool is_fast_syn(const struct tcphdr *tcp, const void *end, __u8 tcp_flags)
{
	return is_only_syn(tcp_flags) && timestamp_fast(tcp, end);
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

	const __be32 *source =
		data + FAST_IP + (ipv6 ? 8 : 12); /* copied by words: the compiler trusts no alignment here */

	for (int i = 0; i < (ipv6 ? 4 : 1); i++)
		p.source[i] = source[i];
	return p;
}

/* The same of a port that is one of a range. The lists' key is found where it lies in a slot. A key of the port itself
 * may lie in vips alone: where subflows join, and where another destination has the slot. */
inline_always const __u32 *fast_range(const __u64 *destination, __be16 port, _Bool ipv6, __u8 protocol)
{
	struct vip_key key = { .port = port, .protocol = protocol, .ipv6 = ipv6 };
	const struct vip_slot *slot;
	const struct port_range *range;

	if (ipv6)
		slot = find_vip_slot(vip_destination6(destination, 0, protocol));
	else
		slot = find_vip_slot(vip_destination(*(const __be32 *)destination, 0, protocol));
	range = slot && slot->number & PORT_RANGES ? port_range_find(slot->number, port) : 0;
	if (!range)
		return 0;
	__builtin_memcpy(key.address, destination, ipv6 ? 16 : 4);
	return bpf_map_lookup_elem(&vips, &key) ? 0 : &range->fast;
}

/* The row of the destination's service. *fast: see struct vip_slot. Rows of services with FAST_THROUGH or
 * FAST_REPLICATED are beyond the table, and set *more to those bits; but not in the programs for them. */
inline_always const struct service *fast_service(const void *data, _Bool ipv6, __u8 protocol, volatile __u8 *more,
						 __u32 *fast)
{
	__be16 port = *(const __be16 *)(data + FAST_L4(ipv6) + 2);
	const __u64 *destination = data + FAST_IP + (ipv6 ? 24 : 16);
	const struct service *service;
	const struct vip_slot *slot;
	const __u32 *word;
	__u32 row;

	if (ipv6)
		slot = find_vip_slot(vip_destination6(destination, port, protocol));
	else
		slot = find_vip_slot((*destination & 0xffff0000ffffffff) | vip_destination(0, 0, protocol));
	word = slot ? &slot->fast : port_ranges_used ? fast_range(destination, port, ipv6, protocol) : 0;
	if (!word)
		return 0;
	*fast = *(const volatile __u32 *)word; /* once: it may flip */
	row = (*fast & ~(!more ? FAST_OTHERS | FAST_THROUGH | FAST_REPLICATED : FAST_OTHERS)) >> FAST_ROW_SHIFT;
	service = bpf_map_lookup_elem(&services, &row);
	if (!service && more)
		*more = *fast >> FAST_MORE_SHIFT & (MORE_REPLICATED | MORE_REWRITTEN);
	if (!*fast || !service || (ipv6 && !is_vip6(service, destination)))
		return 0;
	return service;
}

/* The TCP header says that it has no timestamp: it has no options, or those of Windows' SYNs. */
inline_always _Bool has_no_timestamp(const struct tcphdr *tcp, const void *end)
{
	const __be32 *options = (const void *)(tcp + 1);

	if (tcp->doff == 5)
		return 1;
	return tcp->doff == 8 && (const void *)(options + 3) <= end &&
	       (options[0] & bpf_htonl(0xffff0000)) == bpf_htonl(0x02040000) &&
	       (options[1] & bpf_htonl(0xffffff00)) == bpf_htonl(0x01030300) && options[2] == bpf_htonl(0x01010402);
}
