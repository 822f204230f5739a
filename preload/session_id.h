// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* session_id.h - seals the id of a server into 16 bytes, which clients show when they resume a TLS session:
 * internal/algo/sessionid in C.
 *
 * test/golden/sessionid.json holds both to the same bytes. */
#ifndef SESSION_ID_H
#define SESSION_ID_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NAME_LENGTH 16
#define NAME_KEY_LENGTH 32

struct name_key { /* two SipHash keys, as their little-endian halves */
	uint64_t tag[2], hide[2];
};

static inline uint64_t rotate_left(uint64_t x, int bits)
{
	return x << bits | x >> (64 - bits);
}

static inline void sip_rounds(uint64_t v[4], int rounds)
{
	while (rounds--) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = rotate_left(v[1], 13) ^ v[0];
		v[3] = rotate_left(v[3], 16) ^ v[2];
		v[0] = rotate_left(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = rotate_left(v[1], 17) ^ v[2];
		v[3] = rotate_left(v[3], 21) ^ v[0];
		v[2] = rotate_left(v[2], 32);
	}
}

/* SipHash-2-4 (Aumasson and Bernstein, Indocrypt 2012, section 2) of 8 to 15 bytes: one whole word and the last. */
static inline uint64_t sip24(const uint64_t key[2], const unsigned char *message, size_t length)
{
	uint64_t v[4] = { key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
			  key[1] ^ 0x7465646279746573 };
	uint64_t words[2] = {};

	memcpy(words, message, length);
	words[0] = le64toh(words[0]);
	words[1] = le64toh(words[1]) | (uint64_t)length << 56;
	for (int i = 0; i < 2; i++) {
		v[3] ^= words[i];
		sip_rounds(v, 2);
		v[0] ^= words[i];
	}
	v[2] ^= 0xff;
	sip_rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static inline struct name_key name_key_of(const unsigned char bytes[NAME_KEY_LENGTH])
{
	uint64_t words[4];

	memcpy(words, bytes, sizeof(words));
	return (struct name_key){ { le64toh(words[0]), le64toh(words[1]) }, { le64toh(words[2]), le64toh(words[3]) } };
}

/* Of a name that begins with its nonce: 48 bits. */
static inline uint64_t name_tag(const struct name_key *key, const unsigned char name[NAME_LENGTH], uint16_t id)
{
	unsigned char message[10];

	memcpy(message, name, 8);
	message[8] = id >> 8;
	message[9] = id;
	return sip24(key->tag, message, sizeof(message)) >> 16;
}

/* Completes a name whose first 8 bytes are its nonce. */
static inline void name_seal(const struct name_key *key, unsigned char name[NAME_LENGTH], uint16_t id)
{
	uint64_t tag = name_tag(key, name, id);
	uint16_t hidden;

	for (int i = 0; i < 6; i++)
		name[8 + i] = tag >> (40 - 8 * i);
	hidden = id ^ sip24(key->hide, name, 14);
	name[14] = hidden >> 8;
	name[15] = hidden;
}

/* The id of the server that a name is of; 0: it was not sealed under this key. */
static inline uint16_t name_open(const struct name_key *key, const unsigned char name[NAME_LENGTH])
{
	uint16_t id = (name[14] << 8 | name[15]) ^ sip24(key->hide, name, 14);
	uint64_t tag = 0;

	for (int i = 0; i < 6; i++)
		tag = tag << 8 | name[8 + i];
	return name_tag(key, name, id) == tag ? id : 0;
}

#endif
