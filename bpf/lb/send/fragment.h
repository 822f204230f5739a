/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fragment.h - an IPv4 packet without Don't Fragment that is too big for the path to its server goes in fragments (RFC
 * 791 2.3), each in a tunnel of its own: servers put them together behind it. At XDP one packet stays one: lb writes it
 * as if it did fit, and lb_release at tc cuts it. */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/parse.h"
#include "lb/state/predecessors.h"
#include "lb/state/service.h"
#include "lb/affinity/decision.h"
#include "lb/send/l2.h"
#include "lb/send/resize.h"

/* Implementation constants */
#define FRAGMENT_LENGTH_MOST 9216 /* of the packet: jumbo frames */
#define FRAGMENTS_MOST 8
#define FRAGMENT_DATA_LEAST 48 /* of each but the last: RFC 791 3.1 */

/* Bytes of data for which there is room in a fragment of this length. */
inline_always __u32 fragment_data(int mtu)
{
	return mtu < (int)sizeof(struct iphdr) ? 0 : (mtu - sizeof(struct iphdr)) & ~7u;
}

/* May the packet go in fragments? Whole ones with stops do not: the next stop would not know which fragments belong to
 * a segment. Neither does a ClientHello, of which a load balancer makes segments (lb/walk/hold.h) and a server a
 * connection. */
inline_always _Bool fragment_fits(const struct packet *p, const struct service *service, const struct decision *d,
				  int mtu)
{
	__u32 data = fragment_data(mtu);

	return p->may_fragment && p->protocol != IPPROTO_ICMP && !(d->stops_count && !p->fragment) &&
	       !(d->owner_known && service->flags & SERVICE_SESSION) && p->length <= FRAGMENT_LENGTH_MOST &&
	       data >= FRAGMENT_DATA_LEAST && p->length - sizeof(struct iphdr) <= FRAGMENTS_MOST * data;
}

/* A packet that is cut. Data behind the first fragment waits here while that is sent. */
struct fragmented {
	__be32 header[5]; /* IPv4 */
	__u32 front, data; /* bytes in front of the IP header; of data in each fragment but the last */
	__u32 payload; /* behind the IP header */
	__u32 ifindex;
	__u8 rest[2 * FRAGMENT_LENGTH_MOST]; /* the second half stays empty: the verifier adds up what offset and length
						may be */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fragmented);
} fragmented SEC(".maps");

/* The header of the fragment whose data begins there: identification and all else but length, offset and whether more
 * follow as in the packet, which may be one itself. */
inline_always struct iphdr fragment_header(const struct fragmented *f, __u32 at, __u32 size)
{
	struct iphdr ip;
	__u16 word;

	__builtin_memcpy(&ip, f->header, sizeof(ip));
	word = bpf_ntohs(ip.frag_off);
	word += at / 8;
	if (at + size < f->payload)
		word |= IP_MORE_FRAGMENTS;
	ip.frag_off = bpf_htons(word);
	ip.tot_len = bpf_htons(sizeof(ip) + size);
	ip.check = 0;
	ip.check = checksum_ipv4_header(&ip);
	return ip;
}

/* Makes the frame that of one fragment and sends a copy. 1: it was the last. A global function: it is verified once. */
__noinline int fragment_send(struct __sk_buff *skb, __u32 index)
{
	__u32 zero = 0, front, at, size, last;
	const struct fragmented *f = bpf_map_lookup_elem(&fragmented, &zero);
	struct iphdr ip;

	if (!f)
		return -1;
	front = f->front;
	at = index * f->data;
	if (front > 255 || at >= f->payload)
		return -1;
	size = f->payload - at < f->data ? f->payload - at : f->data;
	ip = fragment_header(f, at, size);
	if (bpf_skb_change_tail(skb, front + sizeof(ip) + size, 0) ||
	    bpf_skb_store_bytes(skb, front, &ip, sizeof(ip), 0) || outer_resize(skb, front, sizeof(ip) + size))
		return -1;
	if (index) {
		at -= f->data;
		last = size - 1;
		asm volatile("" : "+r"(at), "+r"(last));
		if (at >= FRAGMENT_LENGTH_MOST || last >= FRAGMENT_LENGTH_MOST ||
		    bpf_skb_store_bytes(skb, front + sizeof(ip), f->rest + at, last + 1, 0))
			return -1;
	}
	return bpf_clone_redirect(skb, f->ifindex, 0) ? -1 : index * f->data + size == f->payload;
}

/* Reads the packet, and keeps the data that is behind the first fragment. */
__noinline int fragment_read(struct __sk_buff *skb, __u32 front, __u32 mtu)
{
	__u32 zero = 0, last;
	struct fragmented *f = bpf_map_lookup_elem(&fragmented, &zero);
	struct iphdr ip;

	if (!f || front > 255 || bpf_skb_load_bytes(skb, front, &ip, sizeof(ip)))
		return -1;
	f->front = front;
	f->data = fragment_data(mtu);
	__builtin_memcpy(f->header, &ip, sizeof(ip));
	f->payload = bpf_ntohs(ip.tot_len) - sizeof(ip);
	last = f->payload - f->data - 1;
	asm volatile("" : "+r"(last));
	if (f->data < FRAGMENT_DATA_LEAST || last >= FRAGMENT_LENGTH_MOST ||
	    (bpf_ntohs(ip.frag_off) & IP_FRAGMENT_OFFSET) * 8 + f->payload > 0xffff) /* which nobody can put together */
		return -1;
	return bpf_skb_load_bytes(skb, front + sizeof(ip) + f->data, f->rest, last + 1);
}

/* The Ethernet header's end, which the order stands in. */
inline_always long fragment_restore(struct __sk_buff *skb, const struct server *server, __u32 outer)
{
	struct {
		__u8 mac[ETH_ALEN];
		__be16 protocol;
	} end;

	__builtin_memcpy(end.mac, server->source_mac, ETH_ALEN);
	end.protocol = server->vlan ? bpf_htons(ETH_P_8021Q)
				    : bpf_htons(outer && server->flags & SERVER_IPV6 ? ETH_P_IPV6 : ETH_P_IP);
	return bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_source), &end, sizeof(end), 0);
}

/* Carries out an order. A server that has changed since gets what it gets, or nothing. A global function: it is
 * verified once. */
__noinline int fragment_all(struct __sk_buff *skb, __u16 number, __u16 id, __u16 front)
{
	const struct service *service = service_by_number(number);
	const struct server *server = service ? target_by_id(service, id) : 0;
	__u32 zero = 0, outer;
	struct fragmented *f = bpf_map_lookup_elem(&fragmented, &zero);

	if (!server || !f || front < l2_length(server))
		return TC_DROP;
	outer = front - l2_length(server);
	if (server->mtu < outer || fragment_restore(skb, server, outer) ||
	    fragment_read(skb, front, server->mtu - outer))
		return TC_DROP;
	f->ifindex = server->ifindex;
	for (__u32 i = 0; i < FRAGMENTS_MOST; i++) {
		if (fragment_send(skb, i))
			break;
	}
	return TC_DROP;
}
