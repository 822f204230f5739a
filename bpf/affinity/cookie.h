/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* cookie.h - the cookie that a packet echoes names the server of its connection (Cheetah III-A). */
#pragma once

/* *plain: text of the cookie, if one of our keys can have written it. */
inline_always __u16 cookie_find(const struct packet *p, const struct service *service, __u32 echo, __u16 *plain)
{
	const struct siphash_key *key = &service->cookie_key[0];
	__u8 parity = cookie_epoch_parity(echo, service->cookie_bits);

	if (!(service->epochs & 1 << parity))
		return NO_ID;
	if (parity)
		key = &service->cookie_key[1];
	*plain = cookie_plain(echo, flow_hash(key, p->source, p->source_port, p->destination_port, p->ipv6), service->cookie_bits);
	return *plain >> (service->id_shift & 15) & ((1u << (service->id_bits & 15)) - 1);
}
