/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* usual.h - the shape of nearly all packets: no tag, no IP options, no extension headers, no fragment, TCP. What it fixes is a
 * constant to everything that is inlined behind it. Ethernet has been seen; 0: another shape. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"

inline_always _Bool parse_usual_tcp(struct packet *p, struct xdp_md *ctx, const struct tcphdr *tcp, void *data, void *end)
{
	p->protocol = IPPROTO_TCP;
	p->header = tcp->doff * 4;
	p->source_port = tcp->source;
	p->destination_port = tcp->dest;
	p->tcp_flags = ((const __u8 *)tcp)[13];
	return tcp->doff >= 5 && (const void *)tcp + p->header <= end && p->l4 - p->l3 + p->header <= p->length &&
	       frame_holds(ctx, data, end, p->l3 + p->length);
}

inline_always _Bool parse_usual_ipv4(struct packet *p, struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	struct tcphdr *tcp = (void *)(ip + 1);

	if ((void *)(tcp + 1) > end || *(__u8 *)ip != 0x45 || ip->protocol != IPPROTO_TCP ||
	    ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET))
		return 0;
	p->source[0] = ip->saddr;
	p->destination[0] = ip->daddr;
	p->tos = ip->tos;
	p->length = bpf_ntohs(ip->tot_len);
	p->l3 = sizeof(struct ethhdr);
	p->l4 = sizeof(struct ethhdr) + sizeof(*ip);
	return parse_usual_tcp(p, ctx, tcp, data, end);
}

inline_always _Bool parse_usual_ipv6(struct packet *p, struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip = data + sizeof(struct ethhdr);
	struct tcphdr *tcp = (void *)(ip + 1);

	if ((void *)(tcp + 1) > end || ip->version != 6 || ip->nexthdr != IPPROTO_TCP)
		return 0;
	__builtin_memcpy(p->source, &ip->saddr, 16);
	__builtin_memcpy(p->destination, &ip->daddr, 16);
	p->ipv6 = 1;
	p->tos = ip->priority << 4 | ip->flow_lbl[0] >> 4;
	p->length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	p->l3 = sizeof(struct ethhdr);
	p->l4 = sizeof(struct ethhdr) + sizeof(*ip);
	return parse_usual_tcp(p, ctx, tcp, data, end);
}
