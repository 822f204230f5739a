/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* flow.h - a TCP segment in an skb, seen from the server: which service, which client, where the timestamp option is.
 *
 * parse.h serves XDP, where frames are at most an MTU. Here are also super-packets of GSO and GRO, whose length field
 * is 0 when they are big (BIG TCP), and headers that may not be linear yet.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/link_header.h"
#include "wire/timestamp.h"
#include "server/agent.h"

enum flow_direction { FROM_CLIENT, TO_CLIENT };

struct flow {
	struct served_key key;
	__be32 client[4];
	__be16 client_port;
	__u16 l4; /* offset of the TCP header */
	__u8 header; /* its length */
	__u8 tcp_flags;
	__u8 option; /* offset of TSval from the TCP header; 0: none */
	__u8 search; /* enum timestamp_search */
	__u8 fragment; /* the first one of a segment, with its headers */
	__be32 value, echo; /* TSval, TSecr as on the wire */
};

enum { FLOW_NOT_TCP, FLOW_NOT_LINEAR }; /* below any offset of a TCP header */

/* The offset of the TCP header, or FLOW_NOT_TCP (later fragments too), or FLOW_NOT_LINEAR. */
inline_always __u32 flow_addresses(struct flow *f, void *data, void *end, __u32 l2, __be16 protocol,
				   enum flow_direction direction)
{
	__u32 *client = f->client, *service = f->key.address;

	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + l2;

		if ((void *)(ip + 1) > end)
			return FLOW_NOT_LINEAR;
		if (ip->protocol != IPPROTO_TCP || ip->ihl < 5 || ip->frag_off & bpf_htons(IP_FRAGMENT_OFFSET))
			return FLOW_NOT_TCP;
		f->fragment = !!(ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS));
		client[0] = direction == FROM_CLIENT ? ip->saddr : ip->daddr;
		service[0] = direction == FROM_CLIENT ? ip->daddr : ip->saddr;
		return l2 + ip->ihl * 4;
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data + l2;
		__u8 next;
		__u32 l4 = l2 + sizeof(*ip);

		if ((void *)(ip + 1) > end)
			return FLOW_NOT_LINEAR;
		next = ip->nexthdr;
		if (next == IPPROTO_HOPOPTS && !ip->payload_len) { /* jumbogram: 8 bytes, then the segment */
			__u8 *jumbo = (void *)(ip + 1);

			if ((void *)(jumbo + 8) > end)
				return FLOW_NOT_LINEAR;
			if (jumbo[1])
				return FLOW_NOT_TCP;
			next = jumbo[0];
			l4 += 8;
		}
		if (next != IPPROTO_TCP)
			return FLOW_NOT_TCP;
		__builtin_memcpy(client, direction == FROM_CLIENT ? &ip->saddr : &ip->daddr, 16);
		__builtin_memcpy(service, direction == FROM_CLIENT ? &ip->daddr : &ip->saddr, 16);
		f->key.ipv6 = 1;
		return l4;
	}
	return FLOW_NOT_TCP;
}

/* Fills the flow but for the option; answers as flow_addresses. */
inline_always __u32 flow_parse_linear(struct flow *f, struct __sk_buff *skb, enum flow_direction direction)
{
	__u32 l2 = direction == FROM_CLIENT ? link_header(skb, skb->protocol == bpf_htons(ETH_P_IP) ? 4 : 6) : ETH_HLEN;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 l4 = flow_addresses(f, data, end, l2, skb->protocol, direction);
	struct tcphdr *tcp = data + l4;

	if (l4 <= FLOW_NOT_LINEAR)
		return l4;
	if ((void *)(tcp + 1) > end)
		return FLOW_NOT_LINEAR;
	if (tcp->doff < 5)
		return FLOW_NOT_TCP;
	f->l4 = l4;
	f->header = tcp->doff * 4;
	f->key.protocol = IPPROTO_TCP;
	f->client_port = direction == FROM_CLIENT ? tcp->source : tcp->dest;
	f->key.port = direction == FROM_CLIENT ? tcp->dest : tcp->source;
	f->tcp_flags = ((__u8 *)tcp)[13];
	return l4;
}

/* Headers are pulled only when they are not there: it copies, and TCP's own packets are linear up to the payload. */
inline_always _Bool flow_parse(struct flow *f, struct __sk_buff *skb, enum flow_direction direction)
{
	__u32 headers = ETH_HLEN + 60 + TCP_HEADER_MAX, l4;

	l4 = flow_parse_linear(f, skb, direction);
	if (l4 == FLOW_NOT_LINEAR && !bpf_skb_pull_data(skb, skb->len < headers ? skb->len : headers))
		l4 = flow_parse_linear(f, skb, direction);
	return l4 > FLOW_NOT_LINEAR;
}

/* The rare orders of options, and options that are not linear. */
static __noinline int flow_walk_options(struct __sk_buff *skb, struct flow *f)
{
	struct option_bytes options = {};
	__u32 length, last, at = 0;
	__be32 words[2];

	if (!f)
		return TIMESTAMP_MALFORMED;
	length = f->header - TCP_HEADER_MIN;
	if (!length)
		return TIMESTAMP_ABSENT;
	last = length - 1;
	asm volatile("" : "+r"(last));
	if (last >= TCP_OPTIONS_MAX || bpf_skb_load_bytes(skb, f->l4 + TCP_HEADER_MIN, options.byte, last + 1))
		return TIMESTAMP_MALFORMED;
	f->search = timestamp_walk(&options, length, &at);
	if (f->search != TIMESTAMP_FOUND)
		return f->search;
	if (bpf_skb_load_bytes(skb, f->l4 + at, words, sizeof(words)))
		return TIMESTAMP_MALFORMED;
	f->option = at;
	f->value = words[0];
	f->echo = words[1];
	return TIMESTAMP_FOUND;
}

/* Finds the option; the answer is also in f->search. */
inline_always enum timestamp_search flow_find_timestamp(struct flow *f, struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct tcphdr *tcp = data + (f->l4 & 127);
	__be32 *words;

	if ((void *)(tcp + 1) <= end) {
		f->option = timestamp_fast(tcp, end);
		words = (void *)tcp + f->option;
		if (f->option && (void *)(words + 2) <= end) {
			f->value = words[0];
			f->echo = words[1];
			return f->search = TIMESTAMP_FOUND;
		}
	}
	return f->search = flow_walk_options(skb, f);
}

/* Writes one word of the option at an offset from the TCP header. Offloaded checksums stay right: a partial one does
 * not cover the option yet, a complete one covers the checksum field too. */
inline_always void flow_write(struct __sk_buff *skb, const struct flow *f, __u32 at, __be32 old, __be32 new)
{
	if (at & 1)
		bpf_l4_csum_replace(skb, f->l4 + offsetof(struct tcphdr, check), checksum_at_odd_offset(old),
				    checksum_at_odd_offset(new), 4);
	else
		bpf_l4_csum_replace(skb, f->l4 + offsetof(struct tcphdr, check), old, new, 4);
	bpf_skb_store_bytes(skb, f->l4 + at, &new, 4, 0);
}
