/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* unserved.h - unserved: reject. What is for a VIP and none of its services is refused as a host does that does not
 * listen: by a RST (RFC 9293 3.10.7.1), or ICMP's port or protocol unreachable (RFC 1122 3.2.2.1, RFC 4443 3.1). */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "wire/reversed.h"
#include "lb/state/answers.h"
#include "lb/state/verdict.h"
#include "lb/state/vips.h"
#include "lb/ladder/slow.h"
#include "lb/send/answer.h"
#include "lb/send/syn_ack.h"

/* RFC 9293 3.10.7.1, the state CLOSED. */
inline_always enum verdict reset_unserved(struct xdp_md *ctx, const struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct tcphdr *tcp = packet_at(data, p->l4);
	__u32 length = p->length - (p->l4 - p->l3) - p->header;
	struct syn_ack reset = { .flags = TCP_FLAG_RST_BIT };

	if ((void *)(tcp + 1) > end)
		return DROPPED_MALFORMED;
	if (p->tcp_flags & TCP_FLAG_ACK_BIT) {
		reset.sequence = tcp->ack_seq;
	} else {
		length += !!(p->tcp_flags & TCP_FLAG_SYN_BIT) + !!(p->tcp_flags & TCP_FLAG_FIN_BIT);
		reset.acknowledged = bpf_htonl(bpf_ntohl(tcp->seq) + length);
		reset.flags |= TCP_FLAG_ACK_BIT;
	}
	return answer_segment(ctx, p, &reset);
}

/* What ICMP error refuses the packet: type and code. 0: none. */
inline_always __u32 unreachable_kind(const struct packet *p)
{
	if (p->protocol == IPPROTO_UDP)
		return p->ipv6 ? ICMPV6_UNREACHABLE << 8 | ICMPV6_PORT_UNREACHABLE
			       : ICMP_UNREACHABLE << 8 | ICMP_PORT_UNREACHABLE;
	return p->ipv6 ? 0 : ICMP_UNREACHABLE << 8 | ICMP_PROTOCOL_UNREACHABLE;
}

/* To a VIP that refuses, and for none of its services? Neither what is an answer itself or has no ports, nor what has
 * IP options, nor a TCP segment in fragments, whose length is not known. */
inline_always _Bool is_unserved(struct xdp_md *ctx, const struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const __u8 *ip = packet_at(data, p->l3);
	const __u32 *vip;

	if (is_icmp(p) || p->fragment == FRAGMENT_LATER || (void *)(ip + 1) > end || (!p->ipv6 && *ip != 0x45))
		return 0;
	if (p->protocol == IPPROTO_TCP ? p->fragment || p->tcp_flags & TCP_FLAG_RST_BIT : !unreachable_kind(p))
		return 0;
	vip = find_vip_address(p);
	return vip && *vip & VIP_REJECTS && !find_vip_of(p);
}

/* VERDICT_CONTINUE: it is not refused. A global function: it is verified once, not for every path that leads here. */
__noinline int answer_unserved(struct xdp_md *ctx, const struct packet *p)
{
	enum verdict verdict;

	if (!p || !is_unserved(ctx, p))
		return VERDICT_CONTINUE;
	verdict = answer_allowed(p, ANSWER_UNSERVED);
	if (verdict != VERDICT_CONTINUE)
		return verdict;
	if (p->protocol == IPPROTO_TCP)
		return reset_unserved(ctx, p);
	return answer_icmp(ctx, p, unreachable_kind(p), 0) ? ANSWERED_UNSERVED : DROPPED_NO_HEADROOM;
}
