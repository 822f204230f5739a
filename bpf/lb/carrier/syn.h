/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* syn.h - the options of a SYN (RFC 9293 3.2, RFC 7323, RFC 2018), and those of our answer. */
#pragma once

#include "wire/kernel.h"
#include "wire/syn_cookie.h"
#include "wire/timestamp.h"

/* Specification constants */
#define OPTION_MSS 2
#define OPTION_SCALE 3
#define OPTION_SACK 4
#define SCALE_MOST 14 /* RFC 7323 2.3 */
#define SYN_ACK_WORDS 8 /* room for the words of options: 5, and what masks let through */

struct syn_options {
	__u32 at; /* of the walk */
	__be32 timestamp; /* TSval */
	__u16 mss; /* 0: none */
	__u8 scale; /* SYN_COOKIE_SCALE: none */
	_Bool sack, timestamps;
};

inline_always __u32 option_be32(const struct option_bytes *o, __u32 at)
{
	return (__u32)o->byte[at] | o->byte[at + 1] << 8 | o->byte[at + 2] << 16 | (__u32)o->byte[at + 3] << 24;
}

/* The options of Linux' SYNs, without a walk: MSS, SACK, timestamps, NOP, window scale. */
inline_always _Bool syn_read_usual(const struct option_bytes *options, __u32 length, struct syn_options *s)
{
	const __be32 *word = (const void *)options->byte;

	if (length != 20 || (word[0] & bpf_htonl(0xffff0000)) != bpf_htonl(OPTION_MSS << 24 | 4 << 16) ||
	    word[1] != bpf_htonl(OPTION_SACK << 24 | 2 << 16 | OPTION_TIMESTAMP << 8 | OPTION_TIMESTAMP_LENGTH) ||
	    (word[4] & bpf_htonl(0xffffff00)) != bpf_htonl(OPTION_NOP << 24 | OPTION_SCALE << 16 | 3 << 8))
		return 0;
	s->mss = bpf_ntohl(word[0]);
	s->sack = s->timestamps = 1;
	s->timestamp = word[2];
	s->scale = options->byte[19] < SCALE_MOST ? options->byte[19] : SCALE_MOST;
	return 1;
}

/* Walks the options; what cannot be read ends it. A global function, verified once; the position lives in memory, so
 * that all turns look alike. */
__noinline int syn_read(const struct option_bytes *options, __u32 length, struct syn_options *s)
{
	if (!options || !s || syn_read_usual(options, length, s))
		return 0;
	s->at = 0;
	s->mss = 0;
	s->scale = SYN_COOKIE_SCALE;
	s->sack = s->timestamps = 0;
	for (int step = 0; step < TCP_OPTIONS_MAX; step++) {
		__u32 at = *(volatile __u32 *)&s->at;
		__u8 kind, size;

		if (at >= length || at >= TCP_OPTIONS_MAX - 1)
			break;
		kind = options->byte[at];
		if (kind == OPTION_END)
			break;
		if (kind == OPTION_NOP) {
			*(volatile __u32 *)&s->at = at + 1;
			continue;
		}
		size = options->byte[at + 1];
		if (size < 2 || at + size > length)
			break;
		if (kind == OPTION_MSS && size == 4) {
			s->mss = options->byte[at + 2] << 8 | options->byte[at + 3];
		} else if (kind == OPTION_SCALE && size == 3) {
			s->scale = options->byte[at + 2] < SCALE_MOST ? options->byte[at + 2] : SCALE_MOST;
		} else if (kind == OPTION_SACK && size == 2) {
			s->sack = 1;
		} else if (kind == OPTION_TIMESTAMP && size == OPTION_TIMESTAMP_LENGTH) {
			s->timestamps = 1;
			s->timestamp = option_be32(options, at + 2);
		}
		*(volatile __u32 *)&s->at = at + size;
	}
	return 0;
}

/* Writes the options of the answer, and returns how many words they are: never more than those of the SYN, as each is
 * there because the SYN has it. */
inline_always __u32 syn_ack_options(const struct syn_options *s, __u16 mss, __u8 scale, __be32 timestamp,
				    __be32 word[SYN_ACK_WORDS])
{
	__u32 n = 0;

	if (s->mss)
		word[n++ & 7] = bpf_htonl(OPTION_MSS << 24 | 4 << 16 | mss);
	if (s->scale != SYN_COOKIE_SCALE)
		word[n++ & 7] = bpf_htonl(OPTION_NOP << 24 | OPTION_SCALE << 16 | 3 << 8 | scale);
	if (s->timestamps) {
		word[n++ & 7] = s->sack ? bpf_htonl(OPTION_SACK << 24 | 2 << 16 | OPTION_TIMESTAMP << 8 |
						    OPTION_TIMESTAMP_LENGTH)
					: bpf_htonl(OPTION_NOP << 24 | OPTION_NOP << 16 | OPTION_TIMESTAMP << 8 |
						    OPTION_TIMESTAMP_LENGTH);
		word[n++ & 7] = timestamp;
		word[n++ & 7] = s->timestamp;
	} else if (s->sack) {
		word[n++ & 7] = bpf_htonl(OPTION_NOP << 24 | OPTION_NOP << 16 | OPTION_SACK << 8 | 2);
	}
	return n;
}
