/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fast_datagram.h - the fast path of UDP: all packets of a service by hash; QUIC's packets with a short header whose
 * connection id names the server plainly or by one pass of AES with the key in use; and first flights, whose id is too
 * short to be a server's. Does to a packet what the long way does, or returns NOT_FAST before anything has changed. */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/parse.h"
#include "lb/packet/aes.h"
#include "lb/carrier/connection_id.h"
#include "lb/state/quic.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/quic.h"
#include "lb/ladder/dispatched.h"
#include "lb/ladder/placed.h"
#include "lb/walk/fast_find.h"
#include "lb/walk/fast_send.h"
#include "lb/walk/fast_shape.h"

/* Where a datagram begins: QUIC's first octet, then the connection id's. */
#define FAST_QUIC(ipv6) (FAST_L4(ipv6) + sizeof(struct udphdr))

/* The number of the server that an id of the config in use names; NO_ID: none, or it is not read here. */
inline_always __u16 fast_connection_id(const struct service *service, const __u8 *id)
{
	__u32 index = service->quic_base + service->quic_config;
	const __be32 *hidden = (const void *)(id + 1);
	const struct quic_config *config;
	struct aes_block block;

	if (id[0] >> 5 != service->quic_config)
		return NO_ID;
	config = bpf_map_lookup_elem(&quic_configs, &index);
	if (!config || (config->algorithm != QUIC_SINGLE_PASS && config->algorithm != QUIC_PLAIN))
		return NO_ID;
	for (int i = 0; i < 4; i++)
		block.w[i] = bpf_ntohl(hidden[i]);
	if (config->algorithm == QUIC_SINGLE_PASS)
		aes_decrypt_half(&config->key, &block);
	return quic_server(block.w, config->server_bytes, service->ids_count);
}

/* What the client has drawn; 0: its id may be a server's, or is none. quic: of a long header, of which all is there
 * that is read. */
inline_always __u64 fast_drawn(const struct service *service, const __u8 *quic)
{
	__u32 index = service->quic_base + (quic[6] >> 5);
	const struct quic_config *config = bpf_map_lookup_elem(&quic_configs, &index);
	const __u32 *drawn = (const void *)(quic + 7); /* behind the first octet, as quic_read has it */

	if (quic[5] < QUIC_ID_DRAWN || (config && config->algorithm != QUIC_NO_CONFIG && quic[5] >= config->length))
		return 0;
	return (drawn[0] | (__u64)drawn[1] << 32) ?: 1;
}

/* To where the connection has begun, or by the policy. */
inline_always int fast_first_flight(struct xdp_md *ctx, const struct packet *p, struct decision *d, const __u8 *quic,
				    volatile __u8 *more)
{
	const struct service *service = d->service;
	struct finding f = { .again = !more };
	__u64 drawn = service->flags & SERVICE_GUARDED ? 0 : fast_drawn(service, quic), hash;
	int action;

	if (!drawn)
		return NOT_FAST;
	hash = starting_hash(p, service, drawn);
	steer_to(d, starting_find(hash));
	if (d->server)
		return fast_send(ctx, p, d, &f, FORWARDED_STARTING, more);
	if (!fast_by_policy(p, d, &f))
		return NOT_FAST;
	action = fast_send(ctx, p, d, &f, FORWARDED_NEW, more);
	if (action != NOT_FAST)
		starting_commit(hash, d->id);
	return action;
}

/* The frame is for us, and untagged. */
inline_always int fast_datagram(struct xdp_md *ctx, _Bool ipv6, volatile __u8 *more)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const __u8 *quic = data + FAST_QUIC(ipv6);
	struct decision d = {};
	struct finding f = { .again = !more };
	struct packet p;
	__u32 fast, length;

	if ((void *)quic > end || !has_fast_shape(data, ipv6, IPPROTO_UDP))
		return NOT_FAST;
	length = fast_length(data, ipv6);
	if (FAST_IP + length > end - data || length < FAST_QUIC(ipv6) - FAST_IP)
		return NOT_FAST;
	d.service = fast_service(data, ipv6, IPPROTO_UDP, more, &fast);
	if (!d.service)
		return NOT_FAST;
	p = fast_packet(data, length, ipv6, IPPROTO_UDP);
	if (d.service->affinity == AFFINITY_HASH || d.service->affinity == AFFINITY_LOCAL_TABLE) {
		enum verdict verdict = fast_find(&p, &d, &f, 0, 0);

		return verdict == VERDICT_CONTINUE ? NOT_FAST : fast_send(ctx, &p, &d, &f, verdict, more);
	}
	if (d.service->affinity != AFFINITY_QUIC || (void *)quic + 7 + sizeof(struct aes_block) > end)
		return NOT_FAST;
	if (*quic & QUIC_LONG_HEADER)
		return fast_first_flight(ctx, &p, &d, quic, more);
	steer_to(&d, fast_connection_id(d.service, quic + 1));
	return fast_send(ctx, &p, &d, &f, FORWARDED_BY_COOKIE, more);
}
