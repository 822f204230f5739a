/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* client_hello.h - what names the session in the first bytes of a TLS connection (RFC 8446 4.1.2, 4.2.11; RFC 5077; RFC
 * 5246 7.4.1.2). The same as internal/algo/clienthello. */
#pragma once

#include "wire/kernel.h"

/* Specification constants (RFC 8446 4, 5.1) */
#define HELLO_HANDSHAKE 22
#define HELLO_CLIENT 1
#define HELLO_SESSION_AT 43 /* headers of record and message, version, random */
#define HELLO_SESSION_ID_MOST 32
#define HELLO_TICKET 35
#define HELLO_PSK 41

/* Implementation constants */
#define HELLO_NAME 16 /* what is read of what names a session */
#define HELLO_MOST 4096 /* bytes that are looked at: a power of two */
#define HELLO_SPARE 32 /* what a masked index may read behind them */
#define HELLO_EXTENSIONS_MOST 48

enum hello_outcome { HELLO_NOT_TLS, HELLO_MORE, HELLO_MALFORMED, HELLO_COMPLETE };

enum hello_source { HELLO_NO_SESSION, HELLO_BY_SESSION_ID, HELLO_BY_TICKET, HELLO_BY_PSK };

/* In memory of a map: what is read there the verifier does not follow, and all turns of the walk look alike to it. */
struct hello {
	__u8 bytes[HELLO_MOST + HELLO_SPARE];
	__u32 length; /* of what is there */
	__u32 at, end; /* of the walk over extensions */
	__u8 cut; /* there is more that nobody looks at */
	__u8 source; /* enum hello_source */
	__u8 name[HELLO_NAME];
};

inline_always __u8 hello_byte(const struct hello *h, __u32 at)
{
	asm volatile("" : "+r"(at));
	return h->bytes[at & (HELLO_MOST - 1)];
}

inline_always __u32 hello_word(const struct hello *h, __u32 at)
{
	asm volatile("" : "+r"(at));
	at &= HELLO_MOST - 1;
	return h->bytes[at] << 8 | h->bytes[at + 1];
}

/* What it means that the bytes up to end are not all there. */
inline_always enum hello_outcome hello_lacks(const struct hello *h, __u32 end)
{
	return h->cut || end > HELLO_MOST ? HELLO_MALFORMED : HELLO_MORE;
}

inline_always void hello_take(struct hello *h, __u32 at, enum hello_source source)
{
	asm volatile("" : "+r"(at));
	at &= HELLO_MOST - 1;
	for (int i = 0; i < HELLO_NAME; i++)
		h->name[i] = h->bytes[at + i];
	h->source = source;
}

/* From h->at to h->end. */
inline_always enum hello_outcome hello_extensions(struct hello *h)
{
	for (int i = 0; i < HELLO_EXTENSIONS_MOST; i++) {
		__u32 at = *(volatile __u32 *)&h->at, kind, length;

		if (at == h->end)
			return HELLO_COMPLETE;
		if (at + 4 > h->end)
			return HELLO_MALFORMED;
		if (at + 4 > h->length)
			return hello_lacks(h, at + 4);
		kind = hello_word(h, at);
		length = hello_word(h, at + 2);
		at += 4;
		if (kind == HELLO_PSK) { /* the last one: length of the list, length of the first identity, identity */
			if (at + 4 + HELLO_NAME > h->length)
				return hello_lacks(h, at + 4 + HELLO_NAME);
			if (hello_word(h, at + 2) >= HELLO_NAME)
				hello_take(h, at + 4, HELLO_BY_PSK);
			return HELLO_COMPLETE;
		}
		if (kind == HELLO_TICKET && length >= HELLO_NAME) {
			if (at + HELLO_NAME > h->length)
				return hello_lacks(h, at + HELLO_NAME);
			hello_take(h, at, HELLO_BY_TICKET);
		}
		*(volatile __u32 *)&h->at = at + length;
	}
	return HELLO_MALFORMED;
}

/* Fills name and source. A global function: it is verified once. */
__noinline int hello_read(struct hello *h)
{
	__u32 at = HELLO_SESSION_AT + 1, record, length;

	if (!h)
		return HELLO_MALFORMED;
	h->source = HELLO_NO_SESSION;
	if (h->length && h->bytes[0] != HELLO_HANDSHAKE)
		return HELLO_NOT_TLS;
	if (at > h->length)
		return hello_lacks(h, at);
	record = 5 + hello_word(h, 3);
	h->end = 9 + (h->bytes[6] << 16 | hello_word(h, 7));
	if (h->bytes[1] != 3 || h->bytes[5] != HELLO_CLIENT || h->end > record)
		return HELLO_NOT_TLS;
	length = h->bytes[HELLO_SESSION_AT];
	if (length > HELLO_SESSION_ID_MOST)
		return HELLO_MALFORMED;
	if (length == HELLO_SESSION_ID_MOST) {
		if (at + HELLO_NAME > h->length)
			return hello_lacks(h, at + HELLO_NAME);
		hello_take(h, at, HELLO_BY_SESSION_ID);
	}
	at += length; /* cipher suites */
	if (at + 2 > h->length)
		return hello_lacks(h, at + 2);
	at += 2 + hello_word(h, at); /* compression methods */
	if (at + 1 > h->length)
		return hello_lacks(h, at + 1);
	at += 1 + hello_byte(h, at);
	if (at == h->end) /* no extensions (TLS 1.2) */
		return HELLO_COMPLETE;
	h->at = at + 2;
	return hello_extensions(h);
}
