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

/* What was put together of several segments, and what names its session. */
struct hello {
	__u8 bytes[HELLO_MOST + HELLO_SPARE];
	__u32 length; /* of what is there */
	__u8 cut; /* there is more that nobody looks at */
	__u8 source; /* enum hello_source */
	__u8 name[HELLO_NAME];
};

/* Where a hello is: in a packet, or in memory that is as large as struct hello's. */
struct hello_text {
	const __u8 *bytes;
	const void *end; /* of the packet */
	__u32 length;
	_Bool in_packet; /* a constant */
	_Bool cut;
};

struct hello_found {
	__u32 at; /* of the name */
	__u8 source; /* enum hello_source */
};

/* So many bytes from *at on. 0: they are not all there. */
inline_always const __u8 *hello_at(const struct hello_text *t, __u32 *at, __u32 size)
{
	const __u8 *bytes;
	__u32 masked = *at;

	if (masked + size > t->length)
		return 0;
	asm volatile("" : "+r"(masked)); /* it is smaller: the verifier shall see it */
	masked &= HELLO_MOST - 1;
	*at = masked;
	bytes = t->bytes + masked;
	asm volatile("" : "+r"(bytes)); /* what is compared is what is read by */
	return t->in_packet && (const void *)(bytes + size) > t->end ? 0 : bytes;
}

inline_always __u32 hello_word(const __u8 *bytes)
{
	return bpf_ntohs(*(const volatile __be16 *)bytes);
}

/* What it means that the bytes up to end are not all there. */
inline_always enum hello_outcome hello_lacks(const struct hello_text *t, __u32 end)
{
	return t->cut || end > HELLO_MOST ? HELLO_MALFORMED : HELLO_MORE;
}

inline_always enum hello_outcome hello_extensions(const struct hello_text *t, __u32 at, __u32 end,
						  struct hello_found *found)
{
	for (int i = 0; i < HELLO_EXTENSIONS_MOST; i++) {
		const __u8 *extension;
		__u32 kind;

		if (at == end)
			return HELLO_COMPLETE;
		if (at + 4 > end)
			return HELLO_MALFORMED;
		extension = hello_at(t, &at, 4);
		if (!extension)
			return hello_lacks(t, at + 4);
		kind = hello_word(extension);
		at += 4;
		if (kind == HELLO_PSK) { /* the last one: length of the list, length of the first identity, identity */
			extension = hello_at(t, &at, 4 + HELLO_NAME);
			if (!extension)
				return hello_lacks(t, at + 4 + HELLO_NAME);
			if (hello_word(extension + 2) >= HELLO_NAME)
				*found = (struct hello_found){ at + 4, HELLO_BY_PSK };
			return HELLO_COMPLETE;
		}
		if (kind == HELLO_TICKET && hello_word(extension + 2) >= HELLO_NAME) {
			if (at + HELLO_NAME > t->length)
				return hello_lacks(t, at + HELLO_NAME);
			*found = (struct hello_found){ at, HELLO_BY_TICKET };
		}
		at += hello_word(extension +
				 2); /* read again: the verifier knows of neither what it was compared with */
	}
	return HELLO_MALFORMED;
}

inline_always enum hello_outcome hello_find(const struct hello_text *t, struct hello_found *found)
{
	__u32 at = 0, first = HELLO_SESSION_AT + 1, record, end, length;
	const __u8 *bytes = hello_at(t, &at, 1);

	found->source = HELLO_NO_SESSION;
	if (bytes && bytes[0] != HELLO_HANDSHAKE)
		return HELLO_NOT_TLS;
	bytes = hello_at(t, &at, first);
	if (!bytes)
		return hello_lacks(t, first);
	record = 5 + hello_word(bytes + 3);
	end = 9 + (bytes[6] << 16 | hello_word(bytes + 7));
	if (bytes[1] != 3 || bytes[5] != HELLO_CLIENT || end > record)
		return HELLO_NOT_TLS;
	length = bytes[HELLO_SESSION_AT];
	at = first;
	if (length > HELLO_SESSION_ID_MOST)
		return HELLO_MALFORMED;
	if (length == HELLO_SESSION_ID_MOST) {
		if (at + HELLO_NAME > t->length)
			return hello_lacks(t, at + HELLO_NAME);
		*found = (struct hello_found){ at, HELLO_BY_SESSION_ID };
	}
	at += length; /* cipher suites */
	bytes = hello_at(t, &at, 2);
	if (!bytes)
		return hello_lacks(t, at + 2);
	at += 2 + hello_word(bytes); /* compression methods */
	bytes = hello_at(t, &at, 1);
	if (!bytes)
		return hello_lacks(t, at + 1);
	at += 1 + bytes[0];
	if (at == end) /* no extensions (TLS 1.2) */
		return HELLO_COMPLETE;
	return hello_extensions(t, at + 2, end, found);
}

/* Fills name and source. A global function: it is verified once. */
__noinline int hello_read(struct hello *h)
{
	struct hello_text text = {};
	struct hello_found found = {};
	const __u8 *name;
	int outcome;

	if (!h)
		return HELLO_MALFORMED;
	text.bytes = h->bytes;
	text.length = h->length;
	text.cut = h->cut;
	outcome = hello_find(&text, &found);
	h->source = found.source;
	name = hello_at(&text, &found.at, HELLO_NAME);
	if (found.source != HELLO_NO_SESSION && name)
		__builtin_memcpy(h->name, name, HELLO_NAME);
	return outcome;
}
