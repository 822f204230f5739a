/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* reversed.h - flows as their other end sees them, and those of ICMP echoes: of network functions, and of packets that
 * ICMP errors quote. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"

inline_always _Bool is_icmp(const struct packet *p)
{
	return p->protocol == IPPROTO_ICMP || p->protocol == IPPROTO_ICMPV6;
}

/* Of an echo request or reply the identifier stands for both ports. 0: it is another message. */
inline_always _Bool echo_ports(struct packet *p, void *data, void *end)
{
	const struct icmp_header *icmp = packet_at(data, p->l4);
	__u8 request = p->ipv6 ? ICMPV6_ECHO_REQUEST : ICMP_ECHO_REQUEST,
	     reply = p->ipv6 ? ICMPV6_ECHO_REPLY : ICMP_ECHO_REPLY;

	if ((void *)(icmp + 1) > end || icmp->code || (icmp->type != request && icmp->type != reply))
		return 0;
	p->source_port = icmp->unused;
	p->destination_port = icmp->unused;
	return 1;
}

inline_always void reversed(struct packet *r, const struct packet *p)
{
	*r = *p;
	__builtin_memcpy(r->source, p->destination, 16);
	__builtin_memcpy(r->destination, p->source, 16);
	r->source_port = p->destination_port;
	r->destination_port = p->source_port;
}
