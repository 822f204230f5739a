/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* pieces.h - session tls: stores segments of a ClientHello in a slot of `holds`, and assembles them. */
#pragma once

#include "wire/kernel.h"
#include "lb/packet/client_hello.h"
#include "lb/state/holds.h"
#include "lb/send/syn_ack.h"
#include "lb/walk/handshake.h"

/* The piece that follows `length` bytes of the hello, but for those that are taken. -1: there is none. */
__noinline int hold_following(const struct hold *h, __u32 length, __u32 taken)
{
	int found = -1;

	if (!h)
		return -1;
	for (int i = 0; i < HOLD_PIECES; i++) {
		if (i < h->pieces && !(taken >> i & 1) && h->piece[i].sequence - h->base <= length)
			found = i;
	}
	return found;
}

/* Lays pieces from the hello's first byte on one behind another into the work's hello, and returns how many bytes are
 * there. */
__noinline int hold_assemble(__u32 slot)
{
	struct hold *h = bpf_map_lookup_elem(&holds, &slot);
	__u32 first = 0, taken = 0, length = 0;
	struct session_work *w = bpf_map_lookup_elem(&session_works, &first);
	struct bpf_dynptr to;

	if (!h || !w)
		return 0;
	bpf_dynptr_from_mem(w->hello.bytes, HELLO_MOST, 0, &to);
	w->hello.cut = 0;
	h->ordered = 0;
	for (__u32 turn = 0; turn < HOLD_PIECES; turn++) {
		int next = hold_following(h, length, taken);
		__u32 i = next & (HOLD_PIECES - 1), offset, size;

		if (next < 0)
			break;
		taken |= 1u << i;
		h->order[turn] = i;
		h->ordered = turn + 1;
		offset = h->piece[i].sequence - h->base;
		size = h->piece[i].length;
		if (offset + size > HELLO_MOST) {
			w->hello.cut = 1;
			size = HELLO_MOST - offset;
		}
		asm volatile("" : "+r"(size));
		if (size > HOLD_DATA_MOST)
			break;
		bpf_dynptr_write(&to, offset, h->piece[i].data, size, 0);
		if (offset + size > length)
			length = offset + size;
	}
	for (__u32 i = 0; i < HOLD_PIECES; i++) { /* what is behind a gap goes last */
		__u32 at = h->ordered;

		if (i >= h->pieces || taken >> i & 1 || at >= HOLD_PIECES)
			continue;
		h->order[at & (HOLD_PIECES - 1)] = i;
		h->ordered = at + 1;
	}
	return length;
}

/* Is all of it there already? */
__noinline int hold_has(const struct hold *h, __u32 sequence, __u32 length)
{
	int found = 0;

	if (!h)
		return 0;
	for (int i = 0; i < HOLD_PIECES; i++) {
		if (i < h->pieces && h->piece[i].sequence == sequence && h->piece[i].length >= length)
			found = 1;
	}
	return found;
}

/* Are there pieces that a hello that begins at base has not? Of a connection of the same ports, most likely. */
__noinline int hold_has_orphans(const struct hold *h, __u32 base)
{
	int found = 0;

	if (!h)
		return 0;
	for (int i = 0; i < HOLD_PIECES; i++) {
		if (i < h->pieces && h->piece[i].sequence - base > SYN_ACK_WINDOW)
			found = 1;
	}
	return found;
}

/* There is room: see session_hold. */
inline_always _Bool hold_store(struct xdp_md *ctx, const struct session_work *w, struct hold *h, __u32 sequence)
{
	__u32 i = h->pieces & (HOLD_PIECES - 1), headers = w->packet.l4 - w->packet.l3 + w->packet.header,
	      last = headers - 1, data = w->payload - 1;
	struct held_piece *piece = &h->piece[i];

	asm volatile("" : "+r"(last), "+r"(data));
	if (last >= HOLD_HEADERS_MOST || bpf_xdp_load_bytes(ctx, w->packet.l3, piece->header, last + 1))
		return 0;
	if (data < HOLD_DATA_MOST ? bpf_xdp_load_bytes(ctx, w->packet.l4 + w->packet.header, piece->data, data + 1)
				  : w->payload)
		return 0;
	piece->sequence = sequence;
	piece->length = w->payload;
	piece->headers = headers;
	piece->timestamp = bpf_htonl(w->timestamp);
	piece->checksum = w->checksum;
	piece->timestamp_at = w->packet.l4 - w->packet.l3 + w->timestamp_at;
	piece->checksum_at = w->packet.l4 - w->packet.l3 + offsetof(struct tcphdr, check);
	if (!h->pieces || (__s32)(w->timestamp - h->oldest) < 0)
		h->oldest = w->timestamp;
	h->pieces++;
	return 1;
}
