/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* through.h - return: through. This node writes the cookie on the way back and restores the server's own TSecr on the
 * way in, exactly, from the server's clock alone (Cheetah IV-B "fix in place"; departs from it: that restore is wrong
 * in every other epoch, and Linux >= 6.15 drops such handshakes). Needs net.ipv4.tcp_timestamps=2 on the servers: one
 * clock each. */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/cookie.h"
#include "wire/parse.h"
#include "wire/siphash.h"
#include "wire/timestamp.h"
#include "lb/carrier/carried.h"
#include "lb/state/node.h"
#include "lb/state/service.h"
#include "lb/affinity/decision.h"

/* A server's clock may be ahead of what we last learned: by the tick of our coarse clock, and by what it gains until it
 * is asked again. */
#define CLOCK_SLACK_MS 1024

/* The server's T of which the client echoes W = T << c | cookie. 0: its clock is not known. */
inline_always _Bool through_restored(const struct service *service, const struct server *server, __u32 echo,
				     __u32 *restored)
{
	__u32 counter = server->counter, shift = service->cookie_bits & 31;
	__u32 mask = ((__u32)1 << ((32 - shift) & 31)) - 1, latest;
	const __u64 *clock = bpf_map_lookup_elem(&clocks, &counter);

	if (!clock || !(*clock & CLOCK_KNOWN))
		return 0;
	latest = node_clock_ms() + (__u32)*clock + CLOCK_SLACK_MS;
	*restored = latest - ((latest - (echo >> shift)) & mask);
	return 1;
}

/* Client to server: TSecr = that T. */
inline_always _Bool through_restore(struct xdp_md *ctx, const struct packet *p, const struct decision *d)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp = packet_at(data, p->l4);
	__u32 at = d->carried.at + 4, restored;
	__be32 *echo;

	if (at > TCP_HEADER_MAX - 4 || (void *)(tcp + 1) > end ||
	    !through_restored(d->service, d->server, d->carried.echo, &restored))
		return 0;
	echo = in_tcp_header(tcp, at);
	if ((void *)(echo + 1) > end)
		return 0;
	write_timestamp(tcp, echo, at, restored);
	return 1;
}

/* Turn the timestamp option of a SYN into NOPs: the connection will carry none. */
inline_always _Bool through_strip(struct xdp_md *ctx, const struct packet *p, const struct decision *d)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp = packet_at(data, p->l4);
	__u32 at = d->carried.at - 2;
	__u64 sum;
	__u8 *option;

	if (at > TCP_HEADER_MAX - OPTION_TIMESTAMP_LENGTH || (void *)(tcp + 1) > end)
		return 0;
	option = in_tcp_header(tcp, at);
	if ((void *)(option + OPTION_TIMESTAMP_LENGTH) > end)
		return 0;
	sum = (__u16)~tcp->check;
#pragma unroll
	for (int i = 0; i < OPTION_TIMESTAMP_LENGTH; i++) {
		__u32 shift = (at + i) & 1 ? 8 : 0;

		sum += (__u16)~(option[i] << shift);
		sum += OPTION_NOP << shift;
		option[i] = OPTION_NOP;
	}
	tcp->check = checksum_fold(sum);
	return 1;
}

/* Is the server's clock another one than we know, as after a reboot? Its answers are late by the time they waited in
 * queues, never early. */
inline_always void through_compare(__u64 *clock, __u32 timestamp)
{
	__s32 ahead = timestamp - node_clock_ms() - (__u32)*clock;

	if (*clock & CLOCK_KNOWN && !(*clock & CLOCK_DOUBTED) &&
	    (ahead > CLOCK_SLACK_MS || ahead < -4 * CLOCK_SLACK_MS))
		__sync_fetch_and_or(clock, CLOCK_DOUBTED);
}

/* Server to client: write W. */
inline_always _Bool through_mark(struct xdp_md *ctx, const struct packet *p, const struct decision *d)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct service *service = d->service;
	const struct siphash_state *hash = &service->cookie_hash[0];
	struct tcphdr *tcp = packet_at(data, p->l4);
	__u32 counter = d->server->counter, wire;
	__u64 *clock = bpf_map_lookup_elem(&clocks, &counter);
	__u32 at = d->carried.at;
	__be32 *value;

	if (at > TCP_HEADER_MAX - 8 || (void *)(tcp + 1) > end || !clock)
		return 0;
	value = in_tcp_header(tcp, at);
	if ((void *)(value + 1) > end)
		return 0;
	through_compare(clock, d->carried.timestamp);
	if (service->epoch_parity)
		hash = &service->cookie_hash[1];
	wire = d->carried.timestamp << (service->cookie_bits & 31);
	wire |= cookie_make(
		d->id, flow_hash(hash, p->destination, p->destination_port, service->port ?: p->source_port, p->ipv6),
		service->epoch_parity, service->cookie_bits);
	if (!wire) /* TSval 0 means "none" to many stacks: one tick later */
		wire = 1u << (service->cookie_bits & 31);
	write_timestamp(tcp, value, at, wire);
	return 1;
}
