/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* decision.h - where a packet goes, and why: the ladder fills it, and all that follows reads it. */
#pragma once

struct decision {
	const struct service *service;
	const struct server *server;
	__u16 id;
	__u16 stops[PREVIOUS_OWNERS];
	__u8 verdict; /* enum verdict: why this server */
	_Bool quoted; /* the flow is that of a packet that an ICMP error quotes: nothing is learned from it */
	struct carried carried;
};

inline_always _Bool is_syn(const struct packet *p)
{
	return (p->tcp_flags & (TCP_FLAG_SYN_BIT | TCP_FLAG_ACK_BIT)) == TCP_FLAG_SYN_BIT;
}

inline_always _Bool carries_cookies(const struct service *service)
{
	return service->affinity == AFFINITY_COOKIE || service->affinity == AFFINITY_TABLE;
}

/* What the packet carries for us: every carrier is read here, and nowhere else. */
inline_always void read_carried(struct xdp_md *ctx, const struct packet *p, const struct service *service, struct carried *carried)
{
	if (p->protocol == IPPROTO_TCP && carries_cookies(service))
		read_timestamp(ctx, p, carried);
}
