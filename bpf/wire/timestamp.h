/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* timestamp.h - find the TCP timestamp option (RFC 7323): the patterns of Cheetah's Table I, then a bounded walk. */
#pragma once

#include "wire/kernel.h"

/* Specification constants (RFC 9293, RFC 7323, RFC 5925) */
#define TCP_HEADER_MIN 20
#define TCP_HEADER_MAX 60
#define TCP_OPTIONS_MAX 40
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_TIMESTAMP 8
#define OPTION_TIMESTAMP_LENGTH 10
#define OPTION_AUTHENTICATION 29

enum timestamp_search {
	TIMESTAMP_FOUND,
	TIMESTAMP_ABSENT,
	TIMESTAMP_MALFORMED, /* an option runs past the header, or has an impossible length */
	TIMESTAMP_AUTHENTICATED, /* TCP-AO covers the options: they must not be written */
};

/* The walk works on a copy of the options, so that the verifier has one bounded index to follow. */
struct option_bytes {
	__u8 byte[TCP_OPTIONS_MAX + 8] __attribute__((aligned(4)));
};

/* Walk the options; at most one step per byte. Returns an enum timestamp_search, the offset of TSval in *at.
 * A global function, verified once; the position lives behind a pointer, so that the verifier forgets it at every step
 * and sees the loop's states as one. */
__noinline int timestamp_walk(const struct option_bytes *options, __u32 length, __u32 *at)
{
	if (!options || !at)
		return TIMESTAMP_MALFORMED;
	*at = 0;
	for (int step = 0; step < TCP_OPTIONS_MAX; step++) {
		__u32 position = *(volatile __u32 *)at;
		__u8 kind, size;

		if (position >= length || position >= TCP_OPTIONS_MAX)
			return TIMESTAMP_ABSENT;
		kind = options->byte[position];
		if (kind == OPTION_END)
			return TIMESTAMP_ABSENT;
		if (kind == OPTION_NOP) {
			*(volatile __u32 *)at = position + 1;
			continue;
		}
		size = options->byte[position + 1];
		if (size < 2 || position + size > length)
			return TIMESTAMP_MALFORMED;
		if (kind == OPTION_AUTHENTICATION)
			return TIMESTAMP_AUTHENTICATED;
		if (kind == OPTION_TIMESTAMP) {
			*at = TCP_HEADER_MIN + position + 2;
			return size == OPTION_TIMESTAMP_LENGTH ? TIMESTAMP_FOUND : TIMESTAMP_MALFORMED;
		}
		*(volatile __u32 *)at = position + size;
	}
	return TIMESTAMP_ABSENT;
}

/* Where Table I puts TSval, or 0. The first row is 98 % of all packets that are not SYNs. */
inline_always __u32 timestamp_fast(const struct tcphdr *tcp, const void *end)
{
	const __u8 *o = (const void *)(tcp + 1);
	__u32 length = tcp->doff * 4;

	if (length >= 32 && (const void *)(o + 12) <= end) {
		if (*(__be32 *)o == bpf_htonl(0x0101080a)) /* NOP NOP TS */
			return 24;
		if (length >= 36 && (const void *)(o + 16) <= end && *(__be16 *)o == bpf_htons(0x0204) &&
		    (*(__be32 *)(o + 4) == bpf_htonl(0x0402080a) || /* MSS SACKOK TS */
		     *(__be32 *)(o + 4) == bpf_htonl(0x0101080a))) /* MSS NOP NOP TS */
			return 28;
	}
	if (length >= 40 && (const void *)(o + 20) <= end && *(__be16 *)o == bpf_htons(0x0204)) {
		if (*(__be32 *)(o + 4) != bpf_htonl(0x01030300 | o[7])) /* NOP WScale */
			return 0;
		if (*(__be32 *)(o + 8) == bpf_htonl(0x0402080a)) /* SACKOK TS */
			return 32;
		if (*(__be32 *)(o + 8) == bpf_htonl(0x0101080a)) /* NOP NOP TS */
			return 32;
	}
	return 0;
}
