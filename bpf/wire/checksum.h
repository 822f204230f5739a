/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* checksum.h - Internet checksums (RFC 1071) and their incremental update (RFC 1624). */
#pragma once

#include "wire/kernel.h"

inline_always __u16 checksum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* The complete checksum of a 20-byte IPv4 header whose checksum field is 0. */
inline_always __u16 checksum_ipv4_header(const struct iphdr *ip)
{
	const __u32 *word = (const void *)ip;
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < 5; i++)
		sum += word[i];
	return checksum_fold(sum);
}

/* A header without options, no fragment, with its checksum. Summed from the values: words read back right after they
 * were written in smaller pieces have to wait for those writes. */
inline_always void write_ipv4_header(struct iphdr *ip, __u8 tos, __u16 length, __u16 id, _Bool dont_fragment,
				     __u8 protocol, __be32 source, __be32 destination)
{
	__be32 word[3] = {
		bpf_htonl(0x45u << 24 | (__u32)tos << 16 | length),
		bpf_htonl((__u32)id << 16 | (dont_fragment ? IP_DONT_FRAGMENT : 0)),
		bpf_htonl(64u << 24 | (__u32)protocol << 16),
	};
	__be32 *at = (void *)ip;

	at[0] = word[0];
	at[1] = word[1];
	at[2] = word[2];
	at[3] = source;
	at[4] = destination;
	ip->check = checksum_fold((__u64)word[0] + word[1] + word[2] + source + destination);
}

/* Ethernet without a tag, then as above with IP_DONT_FRAGMENT: what nearly all packets get, in few and wide stores.
 * begin: the last two bytes of Ethernet and the first two of IPv4. path: see struct server. */
inline_always void write_untagged_ipv4(void *data, const void *macs, __be32 begin, __u16 length, __u32 path,
				       __u8 protocol, __be32 source, __be32 destination)
{
	__be16 total = bpf_htons(length);
	__u32 sum = (path >> 16) + (begin >> 16) + total + bpf_htons(64 << 8 | protocol);

	sum = (sum & 0xffff) + (sum >> 16);
	sum += sum >> 16;
	*(__u64 *)data = *(const __u64 *)macs;
	*(__u64 *)(data + 8) = *(const __u32 *)(macs + 8) | (__u64)begin << 32;
	*(__u64 *)(data + 16) = (total | path << 16) | (__u64)bpf_htons(IP_DONT_FRAGMENT) << 32 |
				(__u64)bpf_htons(64 << 8 | protocol) << 48;
	*(__sum16 *)(data + 24) = ~sum;
	*(__u64 *)(data + 26) = source | (__u64)destination << 32;
}

/* RFC 1624 eqn. 3 for one aligned 32-bit word. */
inline_always void checksum_replace32(__sum16 *check, __be32 old, __be32 new)
{
	__u64 sum = (__u16)~*check;

	sum += (__u32)~old;
	sum += new;
	*check = checksum_fold(sum);
}

inline_always void checksum_replace16(__sum16 *check, __be16 old, __be16 new)
{
	__u64 sum = (__u16)~*check;

	sum += (__u16)~old;
	sum += new;
	*check = checksum_fold(sum);
}

/* A 32-bit word that starts at an odd offset adds its byte-swapped halves to the sum. */
inline_always __be32 checksum_at_odd_offset(__be32 word)
{
	return ((word & 0x00ff00ff) << 8) | ((word >> 8) & 0x00ff00ff);
}
