/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* mix.h - a flow's slot in a connection table, by multiplication under a key. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "wire/siphash.h"

inline_always __u64 mix64(__u64 x)
{
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ULL;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ULL;
	return x ^ x >> 32;
}

/* Keyed, and cheap; no PRF: nobody sees what comes out of it. The key outlives those of cookies, so that rotations move
 * nobody. */
inline_always __u64 placement_mix(const struct siphash_key *key, const struct packet *p)
{
	__u64 h = (p->source[0] | (__u64)p->source_port << 32 | (__u64)p->destination_port << 48) ^ key->k0;

	if (p->ipv6) {
		h = mix64(h) ^ (p->source[1] | (__u64)p->source[2] << 32);
		h = mix64(h) ^ p->source[3] ^ 6;
	}
	return mix64(h ^ key->k1);
}
