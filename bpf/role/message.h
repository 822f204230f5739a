/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* message.h - what other load balancers ask and answer (packet/peer_message.h): done with, sent on in place, or opened, and its packet goes on here. */
#pragma once

/* Is the frame a message to this node? Looks no further into others than it must. */
inline_always _Bool is_for_peer(const void *data, const void *end)
{
	const struct ethhdr *eth = data;
	const struct vlan_header *vlan = data + sizeof(*eth);
	const void *ip = eth + 1;
	const struct udphdr *udp;
	__be16 protocol;

	if ((void *)(vlan + 1) > end)
		return 0;
	protocol = *(const __be16 *)(data + offsetof(struct ethhdr, h_proto));
	if (protocol == bpf_htons(ETH_P_8021Q)) {
		protocol = vlan->protocol;
		ip = vlan + 1;
	}
	if (protocol == bpf_htons(ETH_P_IP)) {
		const struct iphdr *ip4 = ip;

		udp = (const void *)(ip4 + 1);
		return (const void *)(udp + 1) <= end && ip4->version == 4 && ip4->ihl == 5 && ip4->protocol == IPPROTO_UDP &&
		       !(ip4->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET)) && udp->dest == bpf_htons(GUE_PORT) &&
		       ip4->daddr == replica_address[0];
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *ip6 = ip;

		udp = (const void *)(ip6 + 1);
		return (const void *)(udp + 1) <= end && ip6->version == 6 && ip6->nexthdr == IPPROTO_UDP && udp->dest == bpf_htons(GUE_PORT) &&
		       !__builtin_memcmp(&ip6->daddr, replica_address, sizeof(replica_address));
	}
	return 0;
}

/* The outer headers and the message. 0: it is none of ours. */
inline_always _Bool message_parse(struct tunnel *t, struct peer_message *m, void *data, void *end)
{
	struct ethhdr *eth = data;
	struct gue_header *gue;
	struct udphdr *udp;
	__be16 protocol;
	__u32 at;

	if ((void *)(eth + 1) > end)
		return 0;
	protocol = eth->h_proto;
	t->l3 = sizeof(*eth);
	if (protocol == bpf_htons(ETH_P_8021Q)) {
		struct vlan_header *vlan = (void *)(eth + 1);

		if ((void *)(vlan + 1) > end)
			return 0;
		protocol = vlan->protocol;
		t->l3 += sizeof(*vlan);
	}
	t->outer_ipv6 = protocol == bpf_htons(ETH_P_IPV6);
	if (t->outer_ipv6) {
		struct ipv6hdr *ip6 = data + (t->l3 & 31);

		if ((void *)(ip6 + 1) > end)
			return 0;
		t->length = bpf_ntohs(ip6->payload_len);
		t->tos = ip6->priority << 4 | ip6->flow_lbl[0] >> 4;
		at = (t->l3 & 31) + sizeof(*ip6);
	} else {
		struct iphdr *ip = data + (t->l3 & 31);

		if ((void *)(ip + 1) > end)
			return 0;
		t->length = bpf_ntohs(ip->tot_len) - sizeof(*ip);
		t->tos = ip->tos;
		at = (t->l3 & 31) + sizeof(*ip);
	}
	udp = data + at;
	gue = (void *)(udp + 1);
	if ((void *)(gue + 1) + sizeof(*m) > end || gue->version_control_words != sizeof(*m) / 4 || gue->flags || udp->len != bpf_htons(t->length))
		return 0;
	t->inner_ipv6 = gue->protocol == IPPROTO_IPV6;
	t->inner = at + PEER_HEADERS;
	__builtin_memcpy(m, gue + 1, sizeof(*m));
	return m->type == GUE_PRIVATE_PEER;
}

/* The packet inside, and its flow: its own, the one that it quotes, or seen the other way round. */
inline_always const struct packet *message_flow(struct xdp_md *ctx, const struct tunnel *t, struct packet *p, struct packet *other, _Bool *quoted)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	p->l3 = t->inner;
	if ((t->inner_ipv6 ? parse_ipv6(p, data, end) : parse_ipv4(p, data, end)) != PARSED || p->l4 - p->l3 > p->length ||
	    PEER_HEADERS + p->length != t->length || !frame_holds(ctx, data, end, p->l3 + p->length) || parse_ports(p, data, end) != PARSED)
		return 0;
	if (p->protocol != IPPROTO_ICMP && p->protocol != IPPROTO_ICMPV6)
		return p;
	*quoted = 1;
	return parse_quote(other, p, data, end) ? other : 0;
}

inline_always _Bool message_is_genuine(const struct replica_config *config, const struct peer_message *m, __u64 key)
{
	const struct siphash_state *hash = m->flags & PEER_PARITY ? &config->mac_hash[1] : &config->mac_hash[0];
	__u8 known = m->flags & PEER_PARITY ? config->known[1] : config->known[0];

	return known && peer_mac(hash, m, key, config->self) == m->mac;
}

/* Answers where it came from: its sender's stack gets it at the port that it sent from. Returns an XDP action. */
__noinline int answer_ping(struct xdp_md *ctx, const struct tunnel *t)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct replica_current *now = replicas_now();
	const struct replica_config *config = now ? replica_config_now(now) : 0;
	struct peer_message m;
	struct udphdr *udp;
	__be32 address[4];
	__be16 port;
	void *at;

	if (!t || !config || data + sizeof(struct ethhdr) > end)
		return XDP_DROP;
	swap_macs(data);
	if (t->outer_ipv6) {
		struct ipv6hdr *ip6 = data + (t->l3 & 31);

		if ((void *)(ip6 + 1) > end)
			return XDP_DROP;
		__builtin_memcpy(address, &ip6->saddr, 16);
		__builtin_memcpy(&ip6->saddr, &ip6->daddr, 16);
		__builtin_memcpy(&ip6->daddr, address, 16);
		udp = (void *)(ip6 + 1);
	} else {
		struct iphdr *ip = data + (t->l3 & 31);

		if ((void *)(ip + 1) > end)
			return XDP_DROP;
		address[0] = ip->saddr;
		ip->saddr = ip->daddr;
		ip->daddr = address[0];
		udp = (void *)(ip + 1);
	}
	at = (void *)(udp + 1) + sizeof(struct gue_header);
	if (at + sizeof(m) > end)
		return XDP_DROP;
	port = udp->source;
	udp->source = udp->dest;
	udp->dest = port;
	udp->check = 0;
	__builtin_memcpy(&m, at, sizeof(m));
	m.kind = PEER_PONG;
	m.last = bpf_htons(config->self);
	m.mac = peer_mac(m.flags & PEER_PARITY ? &config->mac_hash[1] : &config->mac_hash[0], &m, 0, bpf_ntohs(m.forwarder));
	__builtin_memcpy(at, &m, sizeof(m));
	return XDP_TX;
}

/* Does what a message says. VERDICT_CONTINUE: it is opened, and its packet goes on here. ANSWERED_ECHO: it was a ping. */
inline_always enum verdict walk_message(struct xdp_md *ctx, struct replica_work *work)
{
	const struct peer_message *m = &work->message;
	const struct tunnel *t = &work->tunnel;
	struct replica_step *s = &work->step;
	struct packet *p = &work->packet;
	const struct replica_current *now = replicas_now();
	const struct replica_config *config = now ? replica_config_now(now) : 0;
	const struct packet *flow;
	const __u32 *destination;
	_Bool quoted = 0;
	int outcome;

	if (!config)
		return DROPPED_OTHER_VIEW;
	if (m->kind == PEER_PING)
		return message_is_genuine(config, m, 0) ? ANSWERED_ECHO : DROPPED_FORGED;
	if (m->kind > PEER_OWNS || !m->kind)
		return DROPPED_FORGED;
	flow = message_flow(ctx, t, p, &work->other, &quoted);
	if (!flow)
		return DROPPED_FORGED;
	s->key = peer_key(&config->key_hash, flow);
	if (!message_is_genuine(config, m, s->key))
		return DROPPED_FORGED;
	destination = find_vip_of(flow);
	if (!destination)
		return DROPPED_NO_SERVER;
	s->service = *destination & ((1u << VIP_JOIN_SHIFT) - 1);
	s->kind = m->kind;
	s->flags = m->flags & ~PEER_PARITY;
	s->hops = m->hops;
	s->forwarder = bpf_ntohs(m->forwarder);
	s->last = bpf_ntohs(m->last);
	s->owner = bpf_ntohs(m->owner);
	s->proposed = bpf_ntohs(m->proposed);
	s->chain = bpf_ntohl(m->chain);
	s->to = config->self;
	outcome = replica_receive(s);
	if (outcome == REPLICA_SEND) {
		p->tos = t->tos; /* what was congested so far is known at the end */
		return send_to_peer(ctx, p, s, t->inner);
	}
	if (outcome == REPLICA_DROP)
		return s->verdict;
	tell(s->owner, s->proposed, s->flags, outcome == REPLICA_FALL_BACK);
	if (!tunnel_copy_congestion(t, (void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return DROPPED_CONGESTED;
	return tunnel_strip(ctx, t) ? VERDICT_CONTINUE : DROPPED_MALFORMED;
}

/* ASKED_ON: the packet inside goes on here, or the frame was none of ours: *message says which. Else an XDP action. */
inline_always int message_way(struct xdp_md *ctx, _Bool *message)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct replica_work *work = replica_work();
	enum verdict verdict;

	if (!work)
		return XDP_DROP;
	*message = data + sizeof(struct ethhdr) <= end && addressed_to_us(ctx, data) && message_parse(&work->tunnel, &work->message, data, end);
	if (!*message)
		return ASKED_ON;
	verdict = walk_message(ctx, work);
	if (verdict == VERDICT_CONTINUE)
		return ASKED_ON;
	count_verdict(work->step.service, verdict == ASKED_PEER ? PASSED_ON_TO_PEER : verdict, work->packet.length);
	if (verdict == ANSWERED_ECHO)
		return answer_ping(ctx, &work->tunnel);
	return verdict == ASKED_PEER ? transmit_to_peer(ctx, &work->step) : XDP_DROP;
}
