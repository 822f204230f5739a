/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* syn_cookie.h - what a load balancer answers a SYN with, and remembers nothing (Yuz IV-B; RFC 4987 3.6). The same as
 * internal/algo/syncookie.
 *
 *   sequence number = sum (20 bits) | period (3) | MSS (3) | ECN | SACK | window scale (4)
 *   timestamp       = hidden server id | cookie of id 0
 *
 * Sum: of the MAC and the client's sequence number, which is not hashed: of all segments within 2^20 bytes only the
 * first is ever good.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/cookie.h"
#include "wire/siphash.h"

/* Implementation constants */
#define SYN_COOKIE_LOW_BITS 12
#define SYN_COOKIE_PERIOD_SHIFT 9
#define SYN_COOKIE_MSS_SHIFT 6
#define SYN_COOKIE_ECN (1 << 5)
#define SYN_COOKIE_SACK (1 << 4)
#define SYN_COOKIE_SCALE 15 /* 15: windows are as they are */
#define SYN_COOKIE_PERIOD_NS (32ULL * 1000000000)
#define SYN_COOKIE_PERIODS_OLD 4
#define SYN_COOKIE_PERIODS_AHEAD 1
#define SYN_COOKIE_HIDDEN_SHIFT 32 /* where in a flow's hash the bits are that hide a server */

static const __u16 syn_cookie_mss[8] = { 536, 1220, 1300, 1360, 1400, 1440, 1460, 8960 };

struct syn_cookie_flow {
	__be32 client[4];
	__be16 client_port, service_port;
	__be32 sequence, timestamp; /* of the client's SYN; of our answer, 0: the client has sent none */
	_Bool ipv6;
};

/* How far CLOCK_TAI is ahead of the time of day on this host: user space knows. */
volatile __u64 syn_cookie_tai_ns;

/* How far CLOCK_TAI is ahead of the clock that is read for nearly nothing, and for which second of that it was seen:
 * the time of day may be set. CPUs race to write the same. */
volatile __u64 syn_cookie_ahead_ns, syn_cookie_seen = ~0ULL;

/* The period by the time of day, which all hosts share, but for some ticks about its begin and end. */
inline_always __u32 syn_cookie_period(void)
{
	__u64 now = bpf_ktime_get_coarse_ns();

	if (syn_cookie_seen != now >> 30) {
		syn_cookie_ahead_ns = bpf_ktime_get_tai_ns() - now;
		syn_cookie_seen = now >> 30;
	}
	return (now + syn_cookie_ahead_ns - syn_cookie_tai_ns) / SYN_COOKIE_PERIOD_NS;
}

inline_always __u32 syn_cookie_mac(const struct siphash_state *begun, const struct syn_cookie_flow *f, __be32 sequence,
				   __u32 low)
{
	struct siphash_state s = { begun->v0, begun->v1, begun->v2, begun->v3 };
	__u64 ports = f->client_port | (__u32)f->service_port << 16;

	if (f->ipv6) {
		siphash24_first_word(&s, f->client[0] | (__u64)f->client[1] << 32);
		siphash24_word(&s, f->client[2] | (__u64)f->client[3] << 32);
		siphash24_word(&s, ports | (__u64)sequence << 32);
		siphash24_word(&s, f->timestamp | (__u64)bpf_htons(low) << 32 | 30ULL << 56);
	} else {
		siphash24_first_word(&s, f->client[0] | ports << 32);
		siphash24_word(&s, sequence | (__u64)f->timestamp << 32);
		siphash24_word(&s, bpf_htons(low) | 18ULL << 56);
	}
	return siphash24_end(&s) >> (32 + SYN_COOKIE_LOW_BITS);
}

/* Low bits of the sequence number: the SYN's options. */
inline_always __u32 syn_cookie_low(__u16 mss, __u8 scale, _Bool sack, _Bool ecn, __u32 period)
{
	__u32 index = 0;

	for (int i = 1; i < 8; i++)
		index += mss >= syn_cookie_mss[i];
	return (period & 7) << SYN_COOKIE_PERIOD_SHIFT | index << SYN_COOKIE_MSS_SHIFT | (ecn ? SYN_COOKIE_ECN : 0) |
	       (sack ? SYN_COOKIE_SACK : 0) | (scale & SYN_COOKIE_SCALE);
}

inline_always __u32 syn_cookie_make(const struct siphash_state *key, const struct syn_cookie_flow *f, __u32 low)
{
	return (syn_cookie_mac(key, f, 0, low) + bpf_ntohl(f->sequence)) << SYN_COOKIE_LOW_BITS | low;
}

inline_always _Bool syn_cookie_is_late(__u32 low)
{
	__u32 age = (syn_cookie_period() - (low >> SYN_COOKIE_PERIOD_SHIFT)) & 7;

	return age > SYN_COOKIE_PERIODS_OLD && age <= 7 - SYN_COOKIE_PERIODS_AHEAD;
}

/* Has one of us sent the number to this client, lately? */
inline_always _Bool syn_cookie_is_good(const struct siphash_state *key, const struct syn_cookie_flow *f, __u32 number)
{
	__u32 low = number & ((1 << SYN_COOKIE_LOW_BITS) - 1);

	return !syn_cookie_is_late(low) && syn_cookie_make(key, f, low) == number;
}

/* The timestamp of the answer, never 0: fallback gets the connection if its ClientHello names no server. */
inline_always __u32 syn_cookie_timestamp(__u16 fallback, __u64 hash, __u8 parity, __u8 cookie_bits)
{
	__u32 hidden = fallback ^ (__u32)(hash >> SYN_COOKIE_HIDDEN_SHIFT);
	__u32 wire = hidden << (cookie_bits & 31) | cookie_make(0, hash, parity, cookie_bits);

	return wire ? wire : 1u << (cookie_bits & 31); /* names another server in one of 2^32 handshakes */
}

inline_always __u16 syn_cookie_fallback(__u32 timestamp, __u64 hash, __u8 cookie_bits)
{
	return ((timestamp >> (cookie_bits & 31)) ^ (__u32)(hash >> SYN_COOKIE_HIDDEN_SHIFT)) &
	       cookie_plain_mask(cookie_bits);
}
