/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* cookie.h - the cookie that a packet echoes names the server of its connection (Cheetah III-A). */
#pragma once

#include "wire/kernel.h"
#include "wire/cookie.h"
#include "wire/parse.h"
#include "wire/siphash.h"
#include "lb/state/service.h"

/* *plain: text of the cookie, if one of our keys can have written it. parity: of the epoch that it names. */
inline_always __u16 cookie_find(const struct packet *p, const struct service *service, __u32 echo, __u8 parity,
				__u16 *plain)
{
	__u16 mask = service->id_mask[parity & 1];
	__u32 text;

	if (!mask)
		return NO_ID;
	text = (__u16)(echo ^ flow_hash(&service->cookie_hash[parity & 1], p->source, p->source_port,
					p->destination_port, p->ipv6));
	asm volatile("" : "+r"(text)); /* what the rest needs is not held in registers while the hash needs them all */
	*plain = text & cookie_plain_mask(service->cookie_bits);
	return text >> (service->id_shift & 15) & mask;
}
