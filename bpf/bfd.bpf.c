/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* bfd.bpf.c - routers and network functions learn by BFD that this host is there, also while its daemon is not (RFC
 * 5880, RFC 5881).
 *
 * Asynchronous mode over one hop, without a timer: `bfd_ingress` answers each control packet of a neighbour with one of
 * ours, so ours are as frequent as theirs. Program and map are pinned, as the data path is: a daemon that restarts
 * misses none, and what is sent says so (C).
 *
 * Departs from RFC 5880 6.8.7: nothing is sent unasked, so a packet lost on its way here is one less on the way back.
 * Departs from 6.8.6: there is no state to keep. What is answered follows from what came, as with the reflector of RFC
 * 7880: nothing here depends on whether a router lives.
 */
#include "wire/kernel.h"
#include "wire/link_header.h"
#include "bfd/datagram.h"
#include "bfd/session.h"

SEC("tc")
int bfd_ingress(struct __sk_buff *skb)
{
	struct datagram at = {};
	struct bfd_session *session;
	struct bfd_packet in, out;
	struct udphdr udp;
	__be32 ports;
	__u32 l2 = link_header(skb, skb->protocol == bpf_htons(ETH_P_IP) ? 4 : 6);

	if (!read_ip(skb, &at, l2) || at.protocol != IPPROTO_UDP ||
	    bpf_skb_load_bytes(skb, at.l4 - ETH_HLEN + l2, &udp, sizeof(udp)) || udp.dest != bpf_htons(BFD_PORT))
		return TC_CONTINUE;
	session = session_with(&at.key);
	if (!session || skb->pkt_type) /* for another host */
		return TC_CONTINUE;
	if (link_header_restore(skb))
		return TC_DROP;
	if (udp.len != bpf_htons(sizeof(udp) + sizeof(in)) ||
	    bpf_skb_load_bytes(skb, at.l4 + sizeof(udp), &in, sizeof(in)) || !acceptable(&in, at.ttl, session)) {
		__sync_fetch_and_add(&session->refused, 1);
		return TC_DROP;
	}
	make_answer(&in, session, &out);
	__builtin_memcpy(&ports, &udp, sizeof(ports));
	if (send_back(skb, &at, ports, &in, &out))
		return TC_DROP;
	session->state = out.state >> 6;
	session->heard_ns = bpf_ktime_get_ns();
	session->detection_us =
		(__u64)session->multiplier *
		(bpf_ntohl(in.min_rx) > bpf_ntohl(out.min_tx) ? bpf_ntohl(in.min_rx) : bpf_ntohl(out.min_tx));
	__sync_fetch_and_add(&session->received, 1);
	return bpf_redirect(skb->ifindex, 0);
}
