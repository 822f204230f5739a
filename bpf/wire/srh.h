/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* srh.h - the segment routing header (RFC 8754 2): its segments are the servers that a packet is to try. */
#pragma once

#include "wire/kernel.h"

/* Specification constants (RFC 8200 4.4, RFC 8754 2) */
#define SRH_TYPE 4

struct srh { /* then the segments, the last one first: addresses of the servers */
	__u8 nexthdr;
	__u8 length; /* of what follows these eight bytes, in eights */
	__u8 type;
	__u8 left; /* segments: index of the one that the packet is under way to */
	__u8 last; /* index of the last one */
	__u8 flags;
	__be16 tag;
};
_Static_assert(sizeof(struct srh) == 8, "srh");

/* 0 stops: there is no such header (RFC 8986 5.2). */
inline_always __u32 srh_length(__u32 stops)
{
	return stops ? sizeof(struct srh) + (stops + 1) * 16 : 0;
}
