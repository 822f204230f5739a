/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* bfd.bpf.c - routers learn by BFD that this host is there, also while its daemon is not (RFC 5880, RFC 5881).
 *
 * Asynchronous mode over one hop, without a timer: `bfd_ingress` answers each control packet of a neighbour with one of ours, so ours are as
 * frequent as theirs. Program and map are pinned, as the data path is: a daemon that restarts misses none, and what is sent says so (C).
 *
 * Departs from RFC 5880 6.8.7: nothing is sent unasked, so a packet lost on its way here is one less on the way back. Departs from 6.8.6: there is no state to
 * keep. What is answered follows from what came, as with the reflector of RFC 7880: nothing here depends on whether a router lives.
 */
#include "wire/kernel.h"
#include "wire/link_header.h"

#define BFD_PORT 3784
#define BFD_SOURCE_PORT 49152
#define BFD_SESSIONS 64

enum bfd_state { BFD_ADMIN_DOWN, BFD_DOWN, BFD_INIT, BFD_UP };

#define BFD_VERSION (1 << 5)
#define BFD_POLL 0x20
#define BFD_FINAL 0x10
#define BFD_INDEPENDENT 0x08 /* of the control plane */
#define BFD_REFUSED 0x07     /* authentication, demand, multipoint */

struct bfd_packet {
	__u8 version;
	__u8 state;
	__u8 multiplier;
	__u8 length;
	__be32 mine, yours;
	__be32 min_tx, min_rx, min_echo;
};
_Static_assert(sizeof(struct bfd_packet) == 24, "RFC 5880 4.1");

struct bfd_key {
	__be32 neighbor[4]; /* IPv4: in the first word */
};

struct bfd_session {
	__be32 discriminator;
	__u32 interval_us;
	__u32 multiplier;
	__u32 state; /* enum bfd_state, that was answered last */
	__u64 heard_ns; /* CLOCK_MONOTONIC */
	__u64 received;
	__u64 refused; /* packets that say they are of this neighbour */
	__u64 detection_us; /* after which the neighbour holds this host for dead */
};
_Static_assert(sizeof(struct bfd_session) == 48, "struct bfd_session is shared with Go");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BFD_SESSIONS);
	__type(key, struct bfd_key);
	__type(value, struct bfd_session);
} bfd_sessions SEC(".maps");

struct datagram {
	struct bfd_key key;
	__u32 addresses, length; /* where they are, and of one: offsets with a link header in front */
	__u32 l4;
	__u8 ttl, protocol;
};

/* l2: how long what is in front of it is. */
inline_always _Bool read_ip(struct __sk_buff *skb, struct datagram *in, __u32 l2)
{
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, l2, &ip, sizeof(ip)) || ip.ihl != 5 || ip.frag_off & bpf_htons(IP_FRAGMENT_OFFSET | IP_MORE_FRAGMENTS))
			return 0;
		in->key.neighbor[0] = ip.saddr;
		in->addresses = ETH_HLEN + offsetof(struct iphdr, saddr);
		in->length = sizeof(ip.saddr);
		in->l4 = ETH_HLEN + sizeof(ip);
		in->ttl = ip.ttl;
		in->protocol = ip.protocol;
		return 1;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, l2, &ip, sizeof(ip)))
			return 0;
		__builtin_memcpy(in->key.neighbor, &ip.saddr, sizeof(ip.saddr));
		in->addresses = ETH_HLEN + offsetof(struct ipv6hdr, saddr);
		in->length = sizeof(ip.saddr);
		in->l4 = ETH_HLEN + sizeof(ip);
		in->ttl = ip.hop_limit;
		in->protocol = ip.nexthdr;
		return 1;
	}
	return 0;
}

/* RFC 5880 6.8.6, RFC 5881 5: only who is on the link can send with this TTL, and only who has heard us knows the discriminator. */
inline_always _Bool acceptable(const struct bfd_packet *in, __u8 ttl, const struct bfd_session *session)
{
	__u8 state = in->state >> 6;

	if (ttl != 255 || in->version >> 5 != 1 || in->length != sizeof(*in) || in->state & BFD_REFUSED || !in->multiplier || !in->mine)
		return 0;
	if ((in->state & (BFD_POLL | BFD_FINAL)) == (BFD_POLL | BFD_FINAL))
		return 0;
	return in->yours ? in->yours == session->discriminator : state <= BFD_DOWN;
}

inline_always void make_answer(const struct bfd_packet *in, const struct bfd_session *session, struct bfd_packet *out)
{
	static const __u8 answers[] = {[BFD_ADMIN_DOWN] = BFD_DOWN, [BFD_DOWN] = BFD_INIT, [BFD_INIT] = BFD_UP, [BFD_UP] = BFD_UP};
	__u8 state = answers[in->state >> 6 & 3];
	__u32 theirs = bpf_ntohl(in->min_tx);

	out->version = BFD_VERSION;
	out->state = state << 6 | BFD_INDEPENDENT | (in->state & BFD_POLL ? BFD_FINAL : 0);
	out->multiplier = session->multiplier;
	out->length = sizeof(*out);
	out->mine = session->discriminator;
	out->yours = in->mine;
	/* No more often than what is answered. */
	out->min_tx = bpf_htonl(theirs > session->interval_us ? theirs : session->interval_us);
	out->min_rx = bpf_htonl(session->interval_us);
	out->min_echo = 0;
}

/* Sends the packet back with another content. Swapped addresses leave all sums as they are. */
inline_always long send_back(struct __sk_buff *skb, const struct datagram *at, __be32 ports, const struct bfd_packet *in, const struct bfd_packet *out)
{
	__be32 source[4] = {}, destination[4] = {}, back = bpf_htonl(BFD_SOURCE_PORT << 16 | BFD_PORT);
	__u8 macs[12], swapped[12];
	__s64 sum;

	if (at->length == 4) {
		if (bpf_skb_load_bytes(skb, at->addresses, source, 4) || bpf_skb_load_bytes(skb, at->addresses + 4, destination, 4) ||
		    bpf_skb_store_bytes(skb, at->addresses, destination, 4, 0) || bpf_skb_store_bytes(skb, at->addresses + 4, source, 4, 0))
			return -1;
	} else {
		if (bpf_skb_load_bytes(skb, at->addresses, source, 16) || bpf_skb_load_bytes(skb, at->addresses + 16, destination, 16) ||
		    bpf_skb_store_bytes(skb, at->addresses, destination, 16, 0) || bpf_skb_store_bytes(skb, at->addresses + 16, source, 16, 0))
			return -1;
	}
	if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)))
		return -1;
	__builtin_memcpy(swapped, macs + ETH_ALEN, ETH_ALEN);
	__builtin_memcpy(swapped + ETH_ALEN, macs, ETH_ALEN);
	sum = bpf_csum_diff(&ports, sizeof(ports), &back, sizeof(back), 0);
	sum = bpf_csum_diff((__be32 *)in, sizeof(*in), (__be32 *)out, sizeof(*out), sum);
	if (bpf_skb_store_bytes(skb, 0, swapped, sizeof(swapped), 0) || bpf_skb_store_bytes(skb, at->l4, &back, sizeof(back), 0) ||
	    bpf_skb_store_bytes(skb, at->l4 + sizeof(struct udphdr), out, sizeof(*out), 0))
		return -1;
	return bpf_l4_csum_replace(skb, at->l4 + offsetof(struct udphdr, check), 0, sum, BPF_F_MARK_MANGLED_0);
}

SEC("tc")
int bfd_ingress(struct __sk_buff *skb)
{
	struct datagram at = {};
	struct bfd_session *session;
	struct bfd_packet in, out;
	struct udphdr udp;
	__be32 ports;
	__u32 l2 = link_header(skb, skb->protocol == bpf_htons(ETH_P_IP) ? 4 : 6);

	if (!read_ip(skb, &at, l2) || at.protocol != IPPROTO_UDP || bpf_skb_load_bytes(skb, at.l4 - ETH_HLEN + l2, &udp, sizeof(udp)) ||
	    udp.dest != bpf_htons(BFD_PORT))
		return TC_CONTINUE;
	session = bpf_map_lookup_elem(&bfd_sessions, &at.key);
	if (!session || skb->pkt_type) /* for another host */
		return TC_CONTINUE;
	if (link_header_restore(skb))
		return TC_DROP;
	if (udp.len != bpf_htons(sizeof(udp) + sizeof(in)) || bpf_skb_load_bytes(skb, at.l4 + sizeof(udp), &in, sizeof(in)) || !acceptable(&in, at.ttl, session)) {
		__sync_fetch_and_add(&session->refused, 1);
		return TC_DROP;
	}
	make_answer(&in, session, &out);
	__builtin_memcpy(&ports, &udp, sizeof(ports));
	if (send_back(skb, &at, ports, &in, &out))
		return TC_DROP;
	session->state = out.state >> 6;
	session->heard_ns = bpf_ktime_get_ns();
	session->detection_us = (__u64)session->multiplier * (bpf_ntohl(in.min_rx) > bpf_ntohl(out.min_tx) ? bpf_ntohl(in.min_rx) : bpf_ntohl(out.min_tx));
	__sync_fetch_and_add(&session->received, 1);
	return bpf_redirect(skb->ifindex, 0);
}
