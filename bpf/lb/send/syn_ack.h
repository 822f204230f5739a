/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* syn_ack.h - makes the answer of a SYN, and of other segments that no server has to do with yet or at all, in their
 * place (RFC 9293 3.5, 3.10.7). */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/parse.h"
#include "lb/carrier/syn.h"
#include "lb/state/verdict.h"
#include "lb/send/answer.h"

#define SYN_ACK_WINDOW 64240 /* of 44 segments of Ethernet, as Linux begins */
#define TCP_FLAG_ECE_BIT 0x40

struct syn_ack {
	__be32 sequence, acknowledged;
	__be32 options[SYN_ACK_WORDS];
	__u32 words; /* of options */
	__u16 window;
	__u8 flags;
};

/* The header at tcp, whose addresses and ports are the SYN's, becomes the answer's. Returns the sum of what it was
 * filled with. */
inline_always __u64 syn_ack_header(struct tcphdr *tcp, const struct packet *p, const struct syn_ack *a)
{
	__be16 flags = bpf_htons((5 + a->words) << 12 | a->flags);
	__be32 *at = (void *)tcp;

	at[0] = p->destination_port | (__u32)p->source_port << 16;
	at[1] = a->sequence;
	at[2] = a->acknowledged;
	at[3] = flags | (__u32)bpf_htons(a->window) << 16;
	at[4] = 0;
	return (__u64)at[0] + at[1] + at[2] + at[3];
}

inline_always __u16 syn_ack_write_ip(void *ip, const struct packet *p, __u32 length)
{
	__u64 sum = bpf_htons(IPPROTO_TCP);

	if (p->ipv6) {
		struct ipv6hdr *six = ip;

		*(__be32 *)ip = bpf_htonl(6u << 28);
		six->payload_len = bpf_htons(length);
		six->nexthdr = IPPROTO_TCP;
		six->hop_limit = 64;
		__builtin_memcpy(&six->saddr, p->destination, 16);
		__builtin_memcpy(&six->daddr, p->source, 16);
		for (int i = 0; i < 4; i++)
			sum += (__u64)p->source[i] + p->destination[i];
	} else {
		write_ipv4_header(ip, 0, sizeof(struct iphdr) + length, 0, 1, IPPROTO_TCP, p->destination[0],
				  p->source[0]);
		sum += (__u64)p->source[0] + p->destination[0];
	}
	sum += bpf_htons(length);
	return ~checksum_fold(sum);
}

/* A global function: it is verified once. Returns a verdict. */
__noinline int answer_segment(struct xdp_md *ctx, const struct packet *p, const struct syn_ack *a)
{
	__u32 header, ip_length, words;
	void *data, *end, *ip;
	struct tcphdr *tcp;
	__u64 sum;
	__be32 *option;

	if (!p || !a)
		return DROPPED_MALFORMED;
	words = a->words;
	if (words > 5)
		return DROPPED_MALFORMED;
	header = sizeof(*tcp) + 4 * words;
	ip_length = p->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	if (bpf_xdp_adjust_tail(ctx, (int)(p->l3 + ip_length + header) - (int)bpf_xdp_get_buff_len(ctx)))
		return DROPPED_MALFORMED; /* it never grows by this */
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	ip = packet_at(data, p->l3);
	tcp = packet_at(data, p->l4);
	if (data + sizeof(struct ethhdr) > end || ip + sizeof(struct ipv6hdr) > end || (void *)(tcp + 1) > end)
		return DROPPED_MALFORMED;
	swap_macs(data);
	sum = syn_ack_header(tcp, p, a);
	sum += syn_ack_write_ip(ip, p, header);
	option = (void *)(tcp + 1);
	for (__u32 i = 0; i < 5; i++) {
		if (i >= words)
			break;
		if ((void *)(option + i + 1) > end)
			return DROPPED_MALFORMED;
		option[i] = a->options[i];
		sum += a->options[i];
	}
	tcp->check = checksum_fold(sum);
	if (a->flags & TCP_FLAG_RST_BIT)
		return ANSWERED_UNSERVED;
	return a->flags & TCP_FLAG_SYN_BIT ? ANSWERED_SYN : ANSWERED_HELLO;
}
