/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* release.h - session tls: sends what was held, in order, as the frame goes that has completed it (role/hold.h). At tc, where one packet may become many. */
#pragma once

/* The outer headers, as XDP has written them, say how long what they carry is. 0, or an error. */
static __noinline int release_resize(struct __sk_buff *skb, __u32 front, __u32 inner)
{
	__u32 at = sizeof(struct ethhdr), length;
	struct iphdr ip = {};
	__u8 protocol = 0;
	__be16 word = 0;

	bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &word, sizeof(word));
	if (word == bpf_htons(ETH_P_8021Q))
		at += sizeof(struct vlan_header);
	if (front <= at)
		return 0; /* forward: l2 */
	length = front - at + inner;
	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
		return -1;
	if (ip.version == 4) {
		protocol = ip.protocol;
		ip.tot_len = bpf_htons(length);
		ip.check = 0;
		ip.check = checksum_ipv4_header(&ip);
		if (bpf_skb_store_bytes(skb, at, &ip, sizeof(ip), 0))
			return -1;
		at += sizeof(ip);
		length -= sizeof(ip);
	} else {
		length -= sizeof(struct ipv6hdr);
		word = bpf_htons(length);
		if (bpf_skb_load_bytes(skb, at + offsetof(struct ipv6hdr, nexthdr), &protocol, sizeof(protocol)) ||
		    bpf_skb_store_bytes(skb, at + offsetof(struct ipv6hdr, payload_len), &word, sizeof(word), 0))
			return -1;
		at += sizeof(struct ipv6hdr);
	}
	if (protocol != IPPROTO_UDP)
		return 0;
	word = bpf_htons(length);
	return bpf_skb_store_bytes(skb, at + offsetof(struct udphdr, len), &word, sizeof(word), 0);
}

/* A global function: it is verified once. */
__noinline int release_piece(struct __sk_buff *skb, __u32 place, __u32 index)
{
	const struct hold *h = bpf_map_lookup_elem(&holds, &place);
	const struct held_piece *piece;
	__u32 front, last, size;
	__u64 at;

	if (!h)
		return -1;
	at = index;
	asm volatile("" : "+r"(at));
	if (at >= HOLD_PIECES)
		return -1;
	piece = &h->piece[at];
	front = h->front;
	last = piece->headers - 1;
	size = piece->length;
	asm volatile("" : "+r"(front), "+r"(last), "+r"(size));
	if (front > 255 || last >= HOLD_HEADERS_MOST || size > HOLD_DATA_MOST)
		return -1;
	if (front + last + 1 + size > h->mtu + sizeof(struct ethhdr) + sizeof(struct vlan_header))
		return -1; /* it comes again, and is answered as too big then */
	if (bpf_skb_change_tail(skb, front + last + 1 + size, 0) || bpf_skb_store_bytes(skb, front, piece->header, last + 1, 0) ||
	    release_resize(skb, front, last + 1 + size))
		return -1;
	front += last + 1;
	last = size - 1;
	asm volatile("" : "+r"(last));
	if (last < HOLD_DATA_MOST && bpf_skb_store_bytes(skb, front, piece->data, last + 1, 0))
		return -1;
	return bpf_clone_redirect(skb, h->ifindex, 0);
}

/* Makes the frame again what it was before it became an order. 0: it is none, or too old. */
inline_always _Bool release_restore(struct __sk_buff *skb, const struct hold *h, __u16 generation)
{
	return h->generation == generation && h->ifindex && !bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_source), h->source_mac, ETH_ALEN + 2, 0);
}

inline_always int release(struct __sk_buff *skb)
{
	__u32 place, ifindex;
	struct ethhdr eth;
	struct hold *h;
	_Bool ours;

	if (skb->protocol != bpf_htons(HOLD_RELEASE) && skb->protocol != bpf_htons(HOLD_DETOUR))
		return TC_CONTINUE;
	if (link_header_restore(skb) || bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
		return TC_DROP;
	if (skb->vlan_present) /* of the frame that came */
		bpf_skb_vlan_pop(skb);
	place = *(const __u16 *)(eth.h_source + 2);
	h = bpf_map_lookup_elem(&holds, &place);
	if (!h || !hold_take(h))
		return TC_DROP;
	ours = release_restore(skb, h, *(const __u16 *)eth.h_source);
	ifindex = h->ifindex;
	if (ours && skb->protocol == bpf_htons(HOLD_RELEASE)) {
		for (__u32 i = 0; i < HOLD_PIECES && i < h->ordered; i++)
			release_piece(skb, place, h->order[i]);
		ours = 0;
	}
	hold_leave(h);
	return ours ? bpf_redirect(ifindex, 0) : TC_DROP;
}
