/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* session_id.h - the server's id, sealed, in what names a TLS session (Yuz III): nonce (8 bytes) | tag (6) | hidden id
 * (2), as internal/algo/sessionid. */
#pragma once

#include "wire/kernel.h"
#include "wire/siphash.h"

struct session_id_key {
	struct siphash_state tag, hide; /* as siphash_begin leaves them */
};

/* Of the words of a name. 0: none of our servers has issued it. */
inline_always __u16 session_id_open(const struct session_id_key *key, __u64 nonce, __u64 sealed)
{
	struct siphash_state hide = key->hide, tag = key->tag;
	__u64 mac;
	__u16 id;

	siphash24_first_word(&hide, nonce);
	siphash24_word(&hide, (sealed & 0xffffffffffff) | 14ULL << 56);
	id = bpf_ntohs(sealed >> 48) ^ (__u16)siphash24_end(&hide);
	siphash24_first_word(&tag, nonce);
	siphash24_word(&tag, bpf_htons(id) | 10ULL << 56);
	mac = siphash24_end(&tag);
	return mac >> 16 == bpf_be64_to_cpu(sealed) >> 16 ? id : 0;
}
