/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* aes.h - AES-128 (FIPS 197) of one block by tables, which user space fills before the program is loaded
 * (internal/algo/aestables).
 *
 * A kernel's own AES (bpf_crypto_decrypt) takes six times as long for one block, and there is none before Linux 6.10.
 * Tables are read at places that depend on the key: who measures the cache of this host could learn it, and with it
 * which server a connection has.
 */
#pragma once

#include "wire/kernel.h"

#define AES_ROUNDS 10

/* Big-endian words. */
struct aes_block {
	__u32 w[4];
};

struct aes_key {
	__u32 w[4 * (AES_ROUNDS + 1)];
};

/* One word of a round, for each byte of the four that it is made of. */
const volatile __u32 aes_encrypt_words[4][256];
const volatile __u32 aes_decrypt_words[4][256];
const volatile __u8 aes_encrypt_bytes[256];
const volatile __u8 aes_decrypt_bytes[256];

#define AES_WORD(table, a, b, c, d, key) \
	(table[0][(a) >> 24] ^ table[1][(b) >> 16 & 0xff] ^ table[2][(c) >> 8 & 0xff] ^ table[3][(d) & 0xff] ^ (key))
#define AES_LAST(bytes, a, b, c, d, key)                                                                              \
	(((__u32)bytes[(a) >> 24] << 24 | (__u32)bytes[(b) >> 16 & 0xff] << 16 | (__u32)bytes[(c) >> 8 & 0xff] << 8 | \
	  bytes[(d) & 0xff]) ^                                                                                        \
	 (key))

/* The first two words of what was encrypted, all that a server's id can take. The key is that of the equivalent inverse
 * cipher (FIPS 197 5.3.5). */
__noinline int aes_decrypt_half(const struct aes_key *key, struct aes_block *block)
{
	__u32 s0, s1, s2, s3;

	if (!key || !block)
		return 0;
	s0 = block->w[0] ^ key->w[0];
	s1 = block->w[1] ^ key->w[1];
	s2 = block->w[2] ^ key->w[2];
	s3 = block->w[3] ^ key->w[3];
#pragma unroll
	for (int i = 4; i < 4 * AES_ROUNDS; i += 4) {
		__u32 t0 = AES_WORD(aes_decrypt_words, s0, s3, s2, s1, key->w[i]);
		__u32 t1 = AES_WORD(aes_decrypt_words, s1, s0, s3, s2, key->w[i + 1]);
		__u32 t2 = AES_WORD(aes_decrypt_words, s2, s1, s0, s3, key->w[i + 2]);
		__u32 t3 = AES_WORD(aes_decrypt_words, s3, s2, s1, s0, key->w[i + 3]);

		s0 = t0;
		s1 = t1;
		s2 = t2;
		s3 = t3;
	}
	block->w[0] = AES_LAST(aes_decrypt_bytes, s0, s3, s2, s1, key->w[4 * AES_ROUNDS]);
	block->w[1] = AES_LAST(aes_decrypt_bytes, s1, s0, s3, s2, key->w[4 * AES_ROUNDS + 1]);
	return 1;
}

__noinline int aes_encrypt(const struct aes_key *key, struct aes_block *block)
{
	__u32 s0, s1, s2, s3;

	if (!key || !block)
		return 0;
	s0 = block->w[0] ^ key->w[0];
	s1 = block->w[1] ^ key->w[1];
	s2 = block->w[2] ^ key->w[2];
	s3 = block->w[3] ^ key->w[3];
#pragma unroll
	for (int i = 4; i < 4 * AES_ROUNDS; i += 4) {
		__u32 t0 = AES_WORD(aes_encrypt_words, s0, s1, s2, s3, key->w[i]);
		__u32 t1 = AES_WORD(aes_encrypt_words, s1, s2, s3, s0, key->w[i + 1]);
		__u32 t2 = AES_WORD(aes_encrypt_words, s2, s3, s0, s1, key->w[i + 2]);
		__u32 t3 = AES_WORD(aes_encrypt_words, s3, s0, s1, s2, key->w[i + 3]);

		s0 = t0;
		s1 = t1;
		s2 = t2;
		s3 = t3;
	}
	block->w[0] = AES_LAST(aes_encrypt_bytes, s0, s1, s2, s3, key->w[4 * AES_ROUNDS]);
	block->w[1] = AES_LAST(aes_encrypt_bytes, s1, s2, s3, s0, key->w[4 * AES_ROUNDS + 1]);
	block->w[2] = AES_LAST(aes_encrypt_bytes, s2, s3, s0, s1, key->w[4 * AES_ROUNDS + 2]);
	block->w[3] = AES_LAST(aes_encrypt_bytes, s3, s0, s1, s2, key->w[4 * AES_ROUNDS + 3]);
	return 1;
}
