/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* gue.h - GUE (draft-ietf-intarea-gue, variant 0) and the private data with which it carries the stops of the second
 * chance. */
#pragma once

#include "wire/kernel.h"

/* Specification constants (GUE) */
#define GUE_PORT 6080
#define GUE_SOURCE_PORT_BASE 49152 /* entropy for ECMP and RSS in the dynamic range */
#define GUE_VERSION_AND_CONTROL 0xe0
#define GUE_HEADER_WORDS 0x1f

#define GUE_PRIVATE_STOPS 1 /* our private data */
#define STOPS_MAX 5 /* offsets behind them stay below 256 */
#define STOPS_MIN 2 /* addresses that there is room for, used or not */

struct gue_header {
	__u8 version_control_words; /* length of what follows these four bytes, in words */
	__u8 protocol;
	__be16 flags;
};

struct gue_stops { /* then addresses of the outer family */
	__u8 type;
	__u8 next; /* index of the next stop */
	__u8 count;
	__u8 reserved;
};
_Static_assert(sizeof(struct gue_stops) == 4, "gue_stops");

/* 0 stops: there is no such data. */
inline_always __u32 gue_stops_length(__u32 count, _Bool ipv6)
{
	return count ? sizeof(struct gue_stops) + (count < STOPS_MIN ? STOPS_MIN : count) * (ipv6 ? 16 : 4) : 0;
}

/* The headers behind the outer IP header. ipv6: the inner packet; length: of all that is behind the outer IP header. 0:
 * no room. */
inline_always _Bool gue_write_headers(void *at, void *end, _Bool ipv6, __u32 length, __u16 entropy, __u8 control_words)
{
	struct udphdr *udp = at;
	struct gue_header *gue = (void *)(udp + 1);

	if ((void *)(gue + 1) > end)
		return 0;
	udp->source = bpf_htons(GUE_SOURCE_PORT_BASE | (entropy & 0x3fff));
	udp->dest = bpf_htons(GUE_PORT);
	udp->len = bpf_htons(length);
	udp->check = 0; /* RFC 768; over IPv6 RFC 6935: the inner packet has its own */
	gue->version_control_words = control_words;
	gue->protocol = ipv6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	gue->flags = 0;
	return 1;
}
