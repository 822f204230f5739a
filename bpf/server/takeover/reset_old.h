/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* reset_old.h - session tls: a client reuses a port while the server still has the old connection, or its TIME_WAIT.
 *
 * A server that receives the SYN handles that itself: a newer SYN ends TIME_WAIT (RFC 6191), and the client of a living
 * connection answers a challenge by RST (RFC 5961 4). Here a load balancer has answered the SYN, and the kernel makes
 * no connection while another one has its ports. So the program injects an RST for the old connection ahead of the
 * packet itself: both enter by the same device, in this order.
 *
 * An attacker must guess the MAC of a SYN cookie (20 bits); to end a living connection, the cookie in the timestamp as
 * well.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/link_header.h"
#include "wire/parse.h"
#include "wire/timestamp.h"
#include "server/agent.h"
#include "server/verdict.h"
#include "server/socket/socket.h"
#include "server/flow/flow.h"
#include "server/timestamp/mark.h"
#include "server/takeover/take_over.h"

/* Implementation constants */
#define RESET_SLOTS 4096
#define RESET_SPACING_MS 20 /* two ticks of the coarse clock, and less than a client's retransmission timeout */

/* By hash of the flow: 32 further bits of the hash, and the time. A connection that an RST does not end must not cause
 * a loop. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RESET_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} resets_sent SEC(".maps");

static __noinline int reset_was_sent(const struct served *served, const struct flow *f)
{
	__u32 slot, now = socket_clock_ms();
	__u64 hash, *last;

	if (!served || !f)
		return 1;
	hash = mark_hash(served, f, served->epoch_parity);
	slot = hash & (RESET_SLOTS - 1);
	last = bpf_map_lookup_elem(&resets_sent, &slot);
	if (!last || (*last >> 32 == hash >> 32 && now - (__u32)*last < RESET_SPACING_MS))
		return 1;
	*last = hash >> 32 << 32 | now;
	return 0;
}

/* Is it of a later connection than the one in TIME_WAIT? A late packet of that one is behind all that was received and
 * sent, and not newer. */
inline_always _Bool is_later(const void *socket, const struct flow *f, const struct tcp_numbers *n)
{
	const struct sock_common *common = socket;
	const struct tcp_timewait_sock *tw = socket;

	return (__s32)(n->sequence - BPF_CORE_READ(common, skc_tw_rcv_nxt)) >= 0 ||
	       (__s32)(n->acknowledged - BPF_CORE_READ(common, skc_tw_snd_nxt)) >= 0 ||
	       (f->search == TIMESTAMP_FOUND && BPF_CORE_READ(tw, tw_ts_recent_stamp) &&
		(__s32)(bpf_ntohl(f->value) - BPF_CORE_READ(tw, tw_ts_recent)) > 0);
}

/* A packet that enters by a device needs its link header, which generic XDP may have lost: see link_header. Returns the
 * bytes added in front of the packet; -1: it failed. */
static __noinline int regain_link_header(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	const struct interface *device = bpf_map_lookup_elem(&interfaces, &ifindex);
	struct ethhdr header = { .h_proto = skb->protocol };

	if (!device ||
	    !(device->mac[0] | device->mac[1] | device->mac[2] | device->mac[3] | device->mac[4] | device->mac[5]) ||
	    link_header(skb, skb->protocol == bpf_htons(ETH_P_IP) ? 4 : 6))
		return 0;
	__builtin_memcpy(header.h_dest, device->mac, sizeof(header.h_dest));
	__builtin_memcpy(header.h_source, device->mac, sizeof(header.h_source));
	return link_header_put(skb, &header) ? -1 : (int)sizeof(header);
}

/* Injects the packet with the header of an RST at sequence number next, then the packet as it was. */
static __noinline int inject_reset(struct __sk_buff *skb, const struct flow *f, __u32 next)
{
	__be32 before[5], reset[5] = {};
	__be16 length, short_length;
	__u64 sum = bpf_htons(IPPROTO_TCP) + bpf_htons(sizeof(reset));
	__u32 at, l4;
	int more;
	long failed;

	if (!f)
		return 0;
	more = regain_link_header(skb);
	if (more < 0)
		return 0;
	l4 = f->l4 + more;
	at = segment_length_at(f) + more;
	short_length = bpf_htons(sizeof(reset) + (f->key.ipv6 ? 0 : sizeof(struct iphdr)));
	reset[0] = f->client_port | (__u32)f->key.port << 16;
	reset[1] = bpf_htonl(next);
	reset[3] = bpf_htons(5 << 12 | TCP_FLAG_RST_BIT);
	for (int i = 0; i < 4; i++)
		sum += (__u64)reset[i] + f->client[i] + f->key.address[i];
	reset[4] = checksum_fold(sum);
	if (bpf_skb_load_bytes(skb, l4, before, sizeof(before)) ||
	    bpf_skb_load_bytes(skb, at, &length, sizeof(length)) ||
	    bpf_skb_store_bytes(skb, l4, reset, sizeof(reset), BPF_F_RECOMPUTE_CSUM))
		return 0;
	if (!f->key.ipv6)
		bpf_l3_csum_replace(skb, l4 - sizeof(struct iphdr) + offsetof(struct iphdr, check), length,
				    short_length, sizeof(length));
	bpf_skb_store_bytes(skb, at, &short_length, sizeof(short_length), BPF_F_RECOMPUTE_CSUM);
	failed = bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	if (!f->key.ipv6)
		bpf_l3_csum_replace(skb, l4 - sizeof(struct iphdr) + offsetof(struct iphdr, check), short_length,
				    length, sizeof(length));
	bpf_skb_store_bytes(skb, at, &length, sizeof(length), BPF_F_RECOMPUTE_CSUM);
	bpf_skb_store_bytes(skb, l4, before, sizeof(before), BPF_F_RECOMPUTE_CSUM);
	return !failed && !bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
}

/* Has this kernel bpf_sk_assign_tcp_reqsk? In memory: a verifier that knew would drop the functions that only reset_old
 * calls, and nobody could tell which. */
volatile __u8 takes_over_here;

/* For the socket of a connection, of a request, or of TIME_WAIT. AGENT_CONTINUE: the packet does not begin another one.
 */
static __noinline enum agent_verdict reset_old(struct __sk_buff *skb, struct bpf_sock *sk, const struct served *served,
					       const struct flow *f)
{
	struct tcp_numbers numbers = {};
	const void *socket;
	__u32 next;

	takes_over_here = !!bpf_sk_assign_tcp_reqsk;
	if (!sk || !served || !f || !takes_over_here || !is_beginning(served, begins(skb, served, f, &numbers)))
		return AGENT_CONTINUE;
	socket = socket_address(sk);
	if (sk->state == SOCKET_TIME_WAIT) {
		const struct sock_common *tw = socket;

		if (!is_later(socket, f, &numbers)) /* the kernel would answer, and begin to wait again */
			return INGRESS_DROPPED_BEFORE;
		next = BPF_CORE_READ(tw, skc_tw_rcv_nxt);
	} else if (sk->state == SOCKET_NEW_SYN_RECV) {
		const struct tcp_request_sock *request = socket;

		next = BPF_CORE_READ(request, rcv_nxt);
	} else {
		const struct tcp_sock *tcp = socket;

		next = BPF_CORE_READ(tcp, rcv_nxt);
		if (f->search != TIMESTAMP_FOUND ||
		    numbers.sequence == next - (__u32)BPF_CORE_READ(tcp, bytes_received))
			return AGENT_CONTINUE;
	}
	return !reset_was_sent(served, f) && inject_reset(skb, f, next) ? INGRESS_MADE_WAY : INGRESS_DROPPED_BEFORE;
}

/* What has a load balancer's echo, for a living connection: the client has not heard from this server yet, or it is of
 * another connection. AGENT_CONTINUE: no load balancer has begun it. */
static __noinline enum agent_verdict restore_beginning(struct __sk_buff *skb, struct bpf_sock *sk,
						       const struct served *served, const struct flow *f,
						       __u32 *restored)
{
	const struct tcp_sock *tcp;
	enum agent_verdict verdict;
	__be32 acknowledged;

	if (!sk || !served || !f || !restored || !(served->flags & SERVED_TAKES_OVER) || !echoes_beginning(served, f) ||
	    bpf_skb_load_bytes(skb, f->l4 + offsetof(struct tcphdr, ack_seq), &acknowledged, sizeof(acknowledged)))
		return AGENT_CONTINUE;
	tcp = socket_address(sk);
	if (bpf_ntohl(acknowledged) == BPF_CORE_READ(tcp, snd_una) - (__u32)BPF_CORE_READ(tcp, bytes_acked)) {
		*restored = bpf_ntohl(f->echo) >> (served->cookie_bits & 31);
		return INGRESS_RESTORED;
	}
	verdict = reset_old(skb, sk, served, f);
	return verdict == AGENT_CONTINUE ? INGRESS_DROPPED_BEFORE : verdict;
}
