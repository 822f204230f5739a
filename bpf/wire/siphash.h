/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* siphash.h - SipHash (Aumasson, Bernstein 2012), the keyed PRF: SipHash-1-3 of cookies and placement, SipHash-2-4
 * where others must not forge. */
#pragma once

#include "wire/kernel.h"

struct siphash_key {
	__u64 k0, k1;
};

#define SIP_ROTATE(x, bits) (((x) << (bits)) | ((x) >> (64 - (bits))))

struct siphash_state {
	__u64 v0, v1, v2, v3;
};

/* The half of a round that a message's word, which is in v3, does not reach. */
inline_always void siphash_round_begin(struct siphash_state *s)
{
	s->v0 += s->v1;
	s->v1 = SIP_ROTATE(s->v1, 13) ^ s->v0;
	s->v0 = SIP_ROTATE(s->v0, 32);
}

inline_always void siphash_round_end(struct siphash_state *s)
{
	s->v2 += s->v3;
	s->v3 = SIP_ROTATE(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = SIP_ROTATE(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = SIP_ROTATE(s->v1, 17) ^ s->v2;
	s->v2 = SIP_ROTATE(s->v2, 32);
}

inline_always void siphash_round(struct siphash_state *s)
{
	siphash_round_begin(s);
	siphash_round_end(s);
}

/* The state of a key, as far as it needs no message. What packets ask of every time, user space has computed
 * (internal/algo/siphash). */
inline_always struct siphash_state siphash_begin(const struct siphash_key *key)
{
	struct siphash_state s = {
		.v0 = key->k0 ^ 0x736f6d6570736575ULL,
		.v1 = key->k1 ^ 0x646f72616e646f6dULL,
		.v2 = key->k0 ^ 0x6c7967656e657261ULL,
		.v3 = key->k1 ^ 0x7465646279746573ULL,
	};

	siphash_round_begin(&s);
	return s;
}

inline_always void siphash_first_word(struct siphash_state *s, __u64 word)
{
	s->v3 ^= word;
	siphash_round_end(s);
	s->v0 ^= word;
}

inline_always void siphash_word(struct siphash_state *s, __u64 word)
{
	s->v3 ^= word;
	siphash_round(s);
	s->v0 ^= word;
}

/* SipHash-2-4, of a state that siphash_begin has begun. */
inline_always void siphash24_first_word(struct siphash_state *s, __u64 word)
{
	s->v3 ^= word;
	siphash_round_end(s);
	siphash_round(s);
	s->v0 ^= word;
}

inline_always void siphash24_word(struct siphash_state *s, __u64 word)
{
	s->v3 ^= word;
	siphash_round(s);
	siphash_round(s);
	s->v0 ^= word;
}

inline_always __u64 siphash24_end(struct siphash_state *s)
{
	s->v2 ^= 0xff;
	siphash_round(s);
	siphash_round(s);
	siphash_round(s);
	siphash_round(s);
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

/* The flow hash: SipHash-1-3 over client address || client port || last byte of the service port, as on the wire.
 * Address and protocol of the service are in the key. 7 bytes are one block with the length; with the whole port they
 * would be two. Two connections that differ in the first byte of the service port alone share a hash, which tells
 * nobody anything. */
inline_always __u64 flow_hash(const struct siphash_state *begun, const __be32 client[4], __be16 client_port,
			      __be16 service_port, _Bool ipv6)
{
	struct siphash_state s = { begun->v0, begun->v1, begun->v2,
				   begun->v3 }; /* one by one: a copy of all would be one of bytes */
	__u32 ports = (__u32)client_port | (bpf_ntohs(service_port) & 0xff) << 16;

	if (ipv6) {
		siphash_first_word(&s, client[0] | (__u64)client[1] << 32);
		siphash_word(&s, client[2] | (__u64)client[3] << 32);
		siphash_word(&s, ports | 19ULL << 56);
	} else {
		siphash_first_word(&s, client[0] | (__u64)ports << 32 | 7ULL << 56);
	}
	s.v2 ^= 0xff;
	siphash_round(&s);
	siphash_round(&s);
	siphash_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}
