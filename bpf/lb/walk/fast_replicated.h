/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fast_replicated.h - the fast path of replicated connections whose server this node knows, of TCP and UDP. Does to a
 * packet what the long way does, or returns NOT_FAST before anything has changed. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/packet/peer_message.h"
#include "lb/state/ring.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/replicated.h"
#include "lb/ladder/ladder.h"
#include "lb/ladder/placed.h"
#include "lb/walk/fast_send.h"
#include "lb/walk/fast_shape.h"

/* Steers to whose it is, if that was seen in this period. 0: others may have to be asked. */
inline_always _Bool fast_steer_by_replicas(struct decision *d, const struct replica_current *now, __u64 key)
{
	__u64 word = replica_read(&replica_answers, key);

	if (word && replica_is_of_period(word, now->period)) {
		steer_to(d, word);
		if (d->server)
			return 1;
	}
	if (!now->view)
		return 0;
	word = replica_read(&replica_entries, key);
	if (!(replica_flags(word) & REPLICA_CACHEABLE) || !replica_is_of_period(word, now->period))
		return 0;
	steer_to(d, word);
	return 1;
}

/* All that is read of the transport header is there, and it neither ends a connection nor is malformed. */
inline_always _Bool has_replicated_shape(const void *data, const void *end, __u32 length, _Bool ipv6, __u8 protocol)
{
	const struct tcphdr *tcp = data + FAST_L4(ipv6);

	if (protocol == IPPROTO_UDP)
		return length >= FAST_L4(ipv6) - FAST_IP + sizeof(struct udphdr);
	return (const void *)(tcp + 1) <= end && tcp->doff >= 5 && FAST_L4(ipv6) - FAST_IP + tcp->doff * 4 <= length &&
	       !tcp->fin && !tcp->rst;
}

inline_always int fast_replicated_ip(struct xdp_md *ctx, _Bool ipv6, __u8 protocol)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct replica_current *now = replicas_now();
	const struct replica_config *config;
	struct finding f = {};
	struct decision d = {};
	const __be32 *destination = data + FAST_IP + (ipv6 ? 24 : 16);
	__u32 fast, length;
	struct packet p;

	if (data + FAST_L4(ipv6) + sizeof(struct udphdr) > end || !has_fast_shape(data, ipv6, protocol))
		return NOT_FAST;
	length = fast_length(data, ipv6);
	if (FAST_IP + length > end - data || !has_replicated_shape(data, end, length, ipv6, protocol))
		return NOT_FAST;
	d.service = fast_service(data, ipv6, protocol, 0, &fast);
	if (!d.service || !has_ring(now))
		return NOT_FAST;
	config = replica_config_now(now);
	if (!config)
		return NOT_FAST;
	p = fast_packet(data, length, ipv6, protocol);
	for (int i = 0; i < (ipv6 ? 4 : 1); i++)
		p.destination[i] = destination[i];
	if (!fast_steer_by_replicas(&d, now, peer_key(&config->key_hash, &p)))
		return NOT_FAST;
	return fast_try(ctx, &p, &d, &f, FORWARDED_BY_REPLICA);
}

/* lb has seen that the frame is for us. */
inline_always int fast_replicated(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be16 protocol;
	int action;

	if (data + sizeof(struct ethhdr) > end)
		return NOT_FAST;
	protocol = *(__be16 *)(data + offsetof(struct ethhdr, h_proto));
	if (protocol == bpf_htons(ETH_P_IP)) {
		action = fast_replicated_ip(ctx, 0, IPPROTO_UDP);
		return action != NOT_FAST ? action : fast_replicated_ip(ctx, 0, IPPROTO_TCP);
	}
	if (protocol != bpf_htons(ETH_P_IPV6))
		return NOT_FAST;
	action = fast_replicated_ip(ctx, 1, IPPROTO_UDP);
	return action != NOT_FAST ? action : fast_replicated_ip(ctx, 1, IPPROTO_TCP);
}
