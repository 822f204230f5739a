/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* carried.h - what a packet to or from a client carries for us: reads it in its TCP timestamps, and writes there what
 * the server shall learn. */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/parse.h"
#include "wire/timestamp.h"

struct carried {
	union {
		struct {
			__u32 timestamp, echo; /* TSval, TSecr, host order */
		};
		__u64 drawn; /* affinity quic: bytes of a connection id that the client may have drawn; 0: it has not */
	};
	__u16 plain; /* text of the cookie, once it is known; affinity quic: the server that a connection id names */
	__u8 at; /* offset of TSval in the TCP header, 0: there is none */
	_Bool malformed; /* none, as the options cannot be read */
	_Bool searched; /* the options were searched: their order is not one of the fast patterns */
	_Bool is_long; /* affinity quic: it has a long header, as what begins a connection */
	_Bool older; /* affinity quic: its id is of a key that is not in use any more, or not yet */
	_Bool changed; /* echo is not what the packet says: it is to be written */
};

/* Options in an order that the fast patterns do not know. Returns the offset of TSval in the TCP header, or the enum
 * timestamp_search that says why there is none. */
static __noinline int search_timestamp(struct xdp_md *ctx, __u32 offset, __u32 length)
{
	struct option_bytes options = {};
	__u32 last = length - 1, at = 0;
	int search;

	/* Pinned: what is compared is what is passed on. */
	asm volatile("" : "+r"(last));
	if (last >= TCP_OPTIONS_MAX || bpf_xdp_load_bytes(ctx, offset, &options, last + 1))
		return TIMESTAMP_MALFORMED;
	search = timestamp_walk(&options, length, &at);
	if (search == TIMESTAMP_FOUND)
		return at;
	return search == TIMESTAMP_AUTHENTICATED ? TIMESTAMP_ABSENT : search;
}

/* Finds the timestamp option of the TCP header at p->l4. */
inline_always void read_timestamp(struct xdp_md *ctx, const struct packet *p, struct carried *c)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp = packet_at(data, p->l4);
	__be32 *value;
	__u32 at;

	if (p->header <= TCP_HEADER_MIN || (void *)(tcp + 1) > end)
		return;
	at = timestamp_fast(tcp, end);
	if (!at) {
		c->searched = 1;
		at = search_timestamp(ctx, p->l4 + TCP_HEADER_MIN, p->header - TCP_HEADER_MIN);
	}
	if (at < TCP_HEADER_MIN || at > TCP_HEADER_MAX - 8) {
		c->malformed = at != TIMESTAMP_ABSENT;
		return;
	}
	value = (void *)tcp + at;
	if ((void *)(value + 2) > end)
		return;
	c->at = at;
	c->timestamp = bpf_ntohl(value[0]);
	c->echo = bpf_ntohl(value[1]);
}

/* What lies at an offset that has been compared with TCP_HEADER_MAX. The mask is for the verifier, the pin keeps the
 * compiler from seeing that it changes nothing. */
inline_always void *in_tcp_header(struct tcphdr *tcp, __u32 at)
{
	asm volatile("" : "+r"(at));
	return (void *)tcp + (at & 63);
}

inline_always void write_timestamp(struct tcphdr *tcp, __be32 *word, __u32 at, __u32 new_host)
{
	__be32 old = *word, new = bpf_htonl(new_host);

	if (at & 1)
		checksum_replace32(&tcp->check, checksum_at_odd_offset(old), checksum_at_odd_offset(new));
	else
		checksum_replace32(&tcp->check, old, new);
	*word = new;
}

/* Client to server: TSecr = c->echo, which carries the cookie to the server. */
inline_always _Bool write_echo(struct xdp_md *ctx, const struct packet *p, const struct carried *c)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp = packet_at(data, p->l4);
	__u32 at = c->at + 4;
	__be32 *echo;

	if (at > TCP_HEADER_MAX - 4 || (void *)(tcp + 1) > end)
		return 0;
	echo = in_tcp_header(tcp, at);
	if ((void *)(echo + 1) > end)
		return 0;
	write_timestamp(tcp, echo, at, c->echo);
	return 1;
}
