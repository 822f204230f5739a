/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* release.h - at tc, where one packet may become many: orders of lb are carried out. Sends what was held, in order, as
 * the frame goes that has completed it (session tls: lb/walk/hold.h), and packets in fragments (fragment.h). */
#pragma once

#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/link_header.h"
#include "lb/state/holds.h"
#include "lb/state/orders.h"
#include "lb/send/fragment.h"
#include "lb/send/resize.h"

/* All pieces get the oldest TSval among them. If a first segment was sent again, it is newer than those behind it,
 * which the server would drop (RFC 7323 5.2). */
inline_always int release_stamp(struct __sk_buff *skb, const struct hold *h, const struct held_piece *piece,
				__u32 front)
{
	__be32 oldest = bpf_htonl(h->oldest), from = piece->timestamp, to = oldest;
	__sum16 checksum = piece->checksum;

	if (piece->timestamp_at & 1) {
		from = checksum_at_odd_offset(from);
		to = checksum_at_odd_offset(to);
	}
	checksum_replace32(&checksum, from, to);
	return bpf_skb_store_bytes(skb, front + piece->timestamp_at, &oldest, sizeof(oldest), 0) ||
	       bpf_skb_store_bytes(skb, front + piece->checksum_at, &checksum, sizeof(checksum), 0);
}

/* A global function: it is verified once. */
__noinline int release_piece(struct __sk_buff *skb, __u32 slot, __u32 index)
{
	const struct hold *h = bpf_map_lookup_elem(&holds, &slot);
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
	if (bpf_skb_change_tail(skb, front + last + 1 + size, 0) ||
	    bpf_skb_store_bytes(skb, front, piece->header, last + 1, 0) || release_stamp(skb, h, piece, front) ||
	    outer_resize(skb, front, last + 1 + size))
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
	return h->generation == generation && h->ifindex &&
	       !bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_source), h->source_mac, ETH_ALEN + 2, 0);
}

inline_always int release(struct __sk_buff *skb)
{
	__u32 slot, ifindex;
	const struct fragment_order *order;
	struct ethhdr eth;
	struct hold *h;
	_Bool ours;

	if (skb->protocol != bpf_htons(ORDER_SEVERAL) && skb->protocol != bpf_htons(ORDER_DETOUR))
		return TC_CONTINUE;
	if (link_header_restore(skb) || bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
		return TC_DROP;
	if (skb->vlan_present) /* of the frame that came */
		bpf_skb_vlan_pop(skb);
	order = (const void *)eth.h_source;
	if (order->front)
		return skb->protocol == bpf_htons(ORDER_SEVERAL)
			       ? fragment_all(skb, order->service, order->id, order->front)
			       : TC_DROP;
	slot = *(const __u16 *)(eth.h_source + 2);
	h = bpf_map_lookup_elem(&holds, &slot);
	if (!h || !hold_take(h))
		return TC_DROP;
	ours = release_restore(skb, h, *(const __u16 *)eth.h_source);
	ifindex = h->ifindex;
	if (ours && skb->protocol == bpf_htons(ORDER_SEVERAL)) {
		for (__u32 i = 0; i < HOLD_PIECES && i < h->ordered; i++)
			release_piece(skb, slot, h->order[i]);
		ours = 0;
	}
	hold_leave(h);
	return ours ? bpf_redirect(ifindex, 0) : TC_DROP;
}
