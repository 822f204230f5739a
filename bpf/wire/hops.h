/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* hops.h - who sends a packet on is a hop, as a router is (RFC 1812 5.3.1). What goes on to a predecessor of this fleet
 * has few hops left besides, so that it goes around few times where routes lead back, whoever names whom. */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"

/* Implementation constants */
#define HOPS_MAX 255
#define PREDECESSOR_HOPS 8 /* from a predecessor to its servers */

/* Take a hop off, and leave so many at most. ip: of an IPv4 or IPv6 packet. 0: it has no hop left. */
inline_always _Bool hops_limit(void *ip, void *end, _Bool ipv6, __u8 most)
{
	struct ipv6hdr *ip6 = ip;
	struct iphdr *ip4 = ip;
	__be16 *word = (__be16 *)&ip4->ttl, before;

	if (ipv6) {
		if ((void *)(ip6 + 1) > end || ip6->hop_limit <= 1)
			return 0;
		ip6->hop_limit = ip6->hop_limit > most ? most : ip6->hop_limit - 1;
		return 1;
	}
	if ((void *)(ip4 + 1) > end || ip4->ttl <= 1)
		return 0;
	before = *word;
	ip4->ttl = ip4->ttl > most ? most : ip4->ttl - 1;
	checksum_replace16(&ip4->check, before, *word);
	return 1;
}
