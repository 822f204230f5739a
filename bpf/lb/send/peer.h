/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* peer.h - send a packet, inside a question or an answer about its connection, to another load balancer. */
#pragma once

#include "wire/kernel.h"
#include "wire/gue.h"
#include "wire/parse.h"
#include "wire/siphash.h"
#include "lb/packet/peer_message.h"
#include "lb/state/ring.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/replicated.h"
#include "lb/send/encapsulate.h"
#include "lb/send/l2.h"

inline_always __u32 peer_outer_length(const struct replica_config *config)
{
	return (config->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) + PEER_HEADERS;
}

inline_always _Bool peer_write(void *at, void *end, const struct replica_config *config, const struct replica_step *s)
{
	struct peer_message m = {
		.type = GUE_PRIVATE_PEER,
		.kind = s->kind,
		.flags = (s->flags & ~PEER_PARITY) | (config->parity & 1),
		.hops = s->hops,
		.forwarder = bpf_htons(s->forwarder),
		.last = bpf_htons(s->last),
		.owner = bpf_htons(s->owner),
		.proposed = bpf_htons(s->proposed),
		.chain = bpf_htonl(s->chain),
	};
	const struct siphash_state *hash = config->parity & 1 ? &config->mac_hash[1] : &config->mac_hash[0];

	if (at + sizeof(m) > end)
		return 0;
	m.mac = peer_mac(hash, &m, s->key, s->to);
	__builtin_memcpy(at, &m, sizeof(m));
	return 1;
}

/* The headers to a peer in front of a packet; behind old_length bytes of others, which they replace. A global function:
 * verified once. Returns an enum verdict. */
__noinline int send_to_peer(struct xdp_md *ctx, const struct packet *p, const struct replica_step *s, __u32 old_length)
{
	const struct replica_current *now = replicas_now();
	const struct replica_config *config = now ? replica_config_now(now) : 0;
	const struct server *peer;
	struct udphdr *udp;
	__u32 outer;
	__u16 entropy;
	int grow;
	void *end;

	if (!p || !s || !config)
		return DROPPED_MALFORMED;
	peer = &config->peers[s->to & (REPLICA_NODES - 1)];
	outer = peer_outer_length(config);
	if (s->to >= REPLICA_NODES || !(peer->flags & SERVER_NEXT_HOP))
		return DROPPED_NO_NEXT_HOP;
	if (p->length + outer > peer->mtu)
		return DROPPED_TOO_BIG_QUIETLY;
	grow = (int)(l2_length(peer) + outer) - (int)(old_length & 255);
	if (grow && bpf_xdp_adjust_head(ctx, -grow))
		return DROPPED_NO_HEADROOM;
	entropy = flow_entropy(p);
	udp = outer_ip(ctx, p, peer, IPPROTO_UDP, outer, entropy, config->ipv6);
	end = (void *)(long)ctx->data_end;
	if (!udp ||
	    !gue_write_headers(udp, end, p->ipv6, p->length + PEER_HEADERS, entropy, sizeof(struct peer_message) / 4) ||
	    !peer_write((void *)(udp + 1) + sizeof(struct gue_header), end, config, s))
		return DROPPED_MALFORMED;
	return ASKED_PEER;
}

/* As transmit() does to a server. */
inline_always int transmit_to_peer(struct xdp_md *ctx, const struct replica_step *s)
{
	const struct replica_current *now = replicas_now();
	const struct replica_config *config = now ? replica_config_now(now) : 0;

	return config ? transmit(ctx, &config->peers[s->to & (REPLICA_NODES - 1)]) : XDP_DROP;
}
