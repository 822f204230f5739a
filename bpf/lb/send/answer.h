/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* answer.h - what this node answers for the VIP: echo, and ICMP errors, as "too big" for what does not fit the way to
 * the server. */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/parse.h"
#include "lb/state/answers.h"
#include "lb/state/verdict.h"
#include "lb/state/vips.h"

/* How much of the packet an ICMP error quotes: all headers, with every option. */
#define QUOTE 128

/* May the source be answered? Not if it stands for nobody, many, or this node (RFC 1122 3.2.1.3, RFC 4443 2.4 e), or we
 * answer ourselves. */
inline_always _Bool answer_possible(const struct packet *p)
{
	const __be32 *a = p->source;
	__u8 first = bpf_ntohl(a[0]) >> 24;

	if (p->ipv6 ? first == 0xff || (!a[0] && !a[1] && (!(a[2] & ~bpf_htonl(0xffff))))
		    : first == 0 || first == 127 || first >= 224)
		return 0;
	return !is_vip_address(p->source, p->ipv6);
}

/* VERDICT_CONTINUE: answer. */
inline_always enum verdict answer_allowed(const struct packet *p, enum answer answer)
{
	if (!answer_possible(p))
		return DROPPED_IMPOSSIBLE_SOURCE;
	return answer_leave(answer) ? VERDICT_CONTINUE : DROPPED_ANSWER_LIMIT;
}

inline_always void swap_macs(struct ethhdr *eth)
{
	__u8 mac[ETH_ALEN];

	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
}

__noinline int answer_echo(struct xdp_md *ctx, const struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct icmp_header *icmp;
	enum verdict verdict;
	__u8 request, reply;

	if (!p)
		return DROPPED_MALFORMED;
	verdict = answer_allowed(p, ANSWER_ECHO);
	if (verdict != VERDICT_CONTINUE)
		return verdict;
	icmp = packet_at(data, p->l4);
	request = p->ipv6 ? ICMPV6_ECHO_REQUEST : ICMP_ECHO_REQUEST;
	reply = p->ipv6 ? ICMPV6_ECHO_REPLY : ICMP_ECHO_REPLY;
	if (data + sizeof(struct ethhdr) > end || (void *)(icmp + 1) > end)
		return DROPPED_MALFORMED;
	swap_macs(data);
	icmp->type = reply;
	checksum_replace16(&icmp->checksum, bpf_htons(request << 8), bpf_htons(reply << 8));
	if (p->ipv6) {
		struct ipv6hdr *ip = packet_at(data, p->l3);

		if ((void *)(ip + 1) > end)
			return DROPPED_MALFORMED;
		__builtin_memcpy(&ip->saddr, p->destination, 16);
		__builtin_memcpy(&ip->daddr, p->source, 16);
		ip->hop_limit = 64;
	} else {
		struct iphdr *ip = packet_at(data, p->l3);

		if ((void *)(ip + 1) > end)
			return DROPPED_MALFORMED;
		ip->saddr = p->destination[0];
		ip->daddr = p->source[0];
		ip->ttl = 64;
		ip->check = 0;
		ip->check = checksum_ipv4_header(ip);
	}
	return ANSWERED_ECHO;
}

/* Put the old l2 header, addresses swapped, in front of `room` new bytes and cut the packet behind the quote. */
inline_always void *answer_frame(struct xdp_md *ctx, const struct packet *p, __u32 room, __u32 quoted)
{
	struct {
		__u8 byte[18];
	} l2;
	void *data, *end;

	if (bpf_xdp_adjust_head(ctx, -(int)room) ||
	    bpf_xdp_adjust_tail(ctx, (int)(p->l3 + room + quoted) - (int)bpf_xdp_get_buff_len(ctx)))
		return 0;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + room + sizeof(l2) > end)
		return 0;
	__builtin_memcpy(&l2, data + room, sizeof(l2));
	__builtin_memcpy(data, &l2, sizeof(l2)); /* 4 bytes too many without a tag: overwritten by the caller */
	swap_macs(data);
	return p->l3 == sizeof(l2) ? data + sizeof(l2) : data + sizeof(struct ethhdr);
}

/* The sum (RFC 1071) of the quote, which ends with the frame. */
inline_always __u64 sum_of_quote(const __u8 *quote, const void *end)
{
	__u64 sum = 0;

	for (__u32 i = 0; i < QUOTE; i++) {
		if ((const void *)(quote + i + 1) > end)
			break;
		sum += (__u32)quote[i] << (i & 1) * 8;
	}
	return sum;
}

inline_always void write_icmp(struct icmp_header *icmp, __be16 kind, __u16 mtu, __u64 sum)
{
	*(__be16 *)icmp = kind;
	icmp->checksum = checksum_fold(sum + kind + bpf_htons(mtu));
	icmp->unused = 0;
	icmp->mtu = bpf_htons(mtu);
}

/* Returns whether there was room. */
inline_always _Bool answer_icmp_ipv4(struct xdp_md *ctx, const struct packet *p, __be16 kind, __u16 mtu, __u32 quoted)
{
	struct iphdr *ip = answer_frame(ctx, p, sizeof(struct iphdr) + sizeof(struct icmp_header), quoted);
	struct icmp_header *icmp = (void *)(ip + 1);
	void *end = (void *)(long)ctx->data_end;

	if (!ip || (void *)(icmp + 1) > end)
		return 0;
	write_ipv4_header(ip, 0, sizeof(*ip) + sizeof(*icmp) + quoted, 0, 0, IPPROTO_ICMP, p->destination[0],
			  p->source[0]);
	write_icmp(icmp, kind, mtu, sum_of_quote((void *)(icmp + 1), end));
	return 1;
}

/* The same for ICMPv6. */
inline_always _Bool answer_icmp_ipv6(struct xdp_md *ctx, const struct packet *p, __be16 kind, __u16 mtu, __u32 quoted)
{
	struct ipv6hdr *ip = answer_frame(ctx, p, sizeof(struct ipv6hdr) + sizeof(struct icmp_header), quoted);
	struct icmp_header *icmp = (void *)(ip + 1);
	__u32 length = sizeof(*icmp) + quoted;
	void *end = (void *)(long)ctx->data_end;
	__u64 sum = bpf_htons(length) + bpf_htons(IPPROTO_ICMPV6);

	if (!ip || (void *)(icmp + 1) > end)
		return 0;
	*(__be32 *)ip = bpf_htonl(6u << 28);
	ip->payload_len = bpf_htons(length);
	ip->nexthdr = IPPROTO_ICMPV6;
	ip->hop_limit = 64;
	__builtin_memcpy(&ip->saddr, p->destination, 16);
	__builtin_memcpy(&ip->daddr, p->source, 16);
	for (int i = 0; i < 4; i++)
		sum += (__u64)p->source[i] + p->destination[i];
	write_icmp(icmp, kind, mtu, sum + sum_of_quote((void *)(icmp + 1), end));
	return 1;
}

/* Answers by an ICMP error that quotes up to QUOTE bytes of the packet. kind: its type, then its code. 0: there was no
 * room. A global function: it is verified once, not for every path that leads here. */
__noinline int answer_icmp(struct xdp_md *ctx, const struct packet *p, __u32 kind, __u32 mtu)
{
	__u32 quoted;

	if (!p)
		return 0;
	quoted = p->length < QUOTE ? p->length : QUOTE;
	return p->ipv6 ? answer_icmp_ipv6(ctx, p, bpf_htons(kind), mtu, quoted)
		       : answer_icmp_ipv4(ctx, p, bpf_htons(kind), mtu, quoted);
}

__noinline int answer_too_big(struct xdp_md *ctx, const struct packet *p, __u32 mtu)
{
	enum verdict verdict;

	if (!p || p->protocol == IPPROTO_ICMP || p->protocol == IPPROTO_ICMPV6 || p->fragment == FRAGMENT_LATER ||
	    p->length < QUOTE)
		return DROPPED_TOO_BIG_QUIETLY;
	verdict = answer_allowed(p, ANSWER_TOO_BIG);
	if (verdict != VERDICT_CONTINUE)
		return verdict;
	/* RFC 4443 3.2: packet too big. RFC 792, RFC 1191: fragmentation needed. */
	if (p->ipv6 ? answer_icmp(ctx, p, ICMPV6_TOO_BIG << 8, mtu < IPV6_MIN_MTU ? IPV6_MIN_MTU : mtu)
		    : answer_icmp(ctx, p, ICMP_UNREACHABLE << 8 | ICMP_FRAGMENTATION_NEEDED, mtu))
		return ANSWERED_TOO_BIG;
	return DROPPED_TOO_BIG_QUIETLY;
}
