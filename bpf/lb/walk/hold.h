/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* hold.h - session tls: a ClientHello in several segments, as browsers send them for post-quantum key shares. XDP sends
 * one packet for one packet: segments are held until the hello is all there, and what completes it becomes the order
 * for lb_release, at tc, to send them all (lb/send/release.h). */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "wire/timestamp.h"
#include "lb/packet/client_hello.h"
#include "lb/state/holds.h"
#include "lb/state/node.h"
#include "lb/state/orders.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/ladder/session.h"
#include "lb/send/l2.h"
#include "lb/send/syn_ack.h"
#include "lb/walk/handshake.h"
#include "lb/walk/pieces.h"

/* Of another connection than the one whose slot this is now? Connections of the same ports before or after begin
 * elsewhere. */
inline_always _Bool hold_is_new(const struct session_work *w, const struct hold *h, __u32 sequence, __u32 now)
{
	if (!hold_is_of(h, &w->key))
		return 1;
	if (!h->based)
		return now - h->last_ms > HOLD_STALE_MS || (w->begins && hold_has_orphans(h, sequence));
	return w->begins ? h->base != sequence : sequence - h->base > SYN_ACK_WINDOW;
}

/* The slot is ours. VERDICT_CONTINUE: the hello is all there, or never will be: w->outcome says. *length: bytes without
 * a gap. */
inline_always enum verdict hold_add(struct xdp_md *ctx, struct session_work *w, struct hold *h, __u32 slot,
				    __u32 *length)
{
	__u32 sequence = bpf_ntohl(w->sequence), now = node_clock_ms();
	_Bool repeated = 0, full = 0;

	if (hold_is_new(w, h, sequence, now)) {
		if (!w->payload)
			return HELD_HELLO; /* the end of nothing: session_hold has no slot for it */
		h->key = w->key;
		h->generation++;
		h->pieces = 0;
		h->based = 0;
		h->ifindex = 0;
	}
	h->last_ms = now;
	if (w->begins) {
		h->base = sequence;
		h->based = 1;
		hold_note_begun(w->hash, sequence);
	}
	repeated = hold_has(h, sequence, w->payload) && w->payload;
	if (!repeated)
		full = h->pieces >= HOLD_PIECES || !hold_store(ctx, w, h, sequence);
	holds_waiting[slot & (HOLDS - 1)] = h->based ? 0 : (__u32)w->hash;
	if (!h->based)
		return HELD_HELLO;
	*length = hold_assemble(slot);
	w->hello.length = *length;
	w->outcome = hello_read(&w->hello);
	if (w->outcome == HELLO_MORE && !full && !(w->packet.tcp_flags & TCP_FLAG_FIN_BIT))
		return repeated ? ANSWERED_HELLO : HELD_HELLO;
	w->base = bpf_htonl(h->base);
	w->held = slot + 1;
	w->generation = h->generation;
	return VERDICT_CONTINUE;
}

/* What comes again is acknowledged, as by a server: after a loss a client may not send the rest before that (RFC
 * 5681 3.1, RFC 896). */
inline_always enum verdict hold_acknowledge(struct xdp_md *ctx, struct session_work *w, __u32 acknowledged)
{
	struct syn_ack *a = &w->answer;

	a->sequence = w->acknowledged;
	a->acknowledged = bpf_htonl(acknowledged);
	a->flags = TCP_FLAG_ACK_BIT;
	a->window = w->window;
	a->words = 3;
	a->options[0] =
		bpf_htonl(OPTION_NOP << 24 | OPTION_NOP << 16 | OPTION_TIMESTAMP << 8 | OPTION_TIMESTAMP_LENGTH);
	a->options[1] = bpf_htonl(w->echo);
	a->options[2] = bpf_htonl(w->timestamp);
	return answer_segment(ctx, &w->packet, a);
}

/* A segment of a hello that is not all there, or a whole one of which later segments may have come before.
 * VERDICT_CONTINUE: it is all there now, or never will be: w->outcome; what is held of it: w->held. A global function:
 * it is verified once, and has a stack of its own. */
__noinline int session_hold(struct xdp_md *ctx, struct session_work *w, const struct service *service)
{
	__u32 slot, length = 0, base;
	enum verdict verdict;
	struct hold *h;

	if (!w || !service)
		return DROPPED_MALFORMED;
	w->held = 0;
	if (w->packet.fragment != FRAGMENT_NONE || w->payload > HOLD_DATA_MOST ||
	    w->packet.l4 - w->packet.l3 + w->packet.header > HOLD_HEADERS_MOST)
		return VERDICT_CONTINUE;
	slot = hold_slot(&w->key, w->hash >> 48, node_clock_ms());
	h = bpf_map_lookup_elem(&holds, &slot);
	if (!h || (!(w->payload && w->outcome == HELLO_MORE) && !hold_is_of(h, &w->key)))
		return VERDICT_CONTINUE;
	if (w->begins && !hold_is_of(h, &w->key) && hold_has_begun(w->hash, bpf_ntohl(w->sequence)))
		return VERDICT_CONTINUE; /* pushed out: by the policy, as it may be again and again. The session is
					    lost, not the connection */
	if (!hold_take(h))
		return DROPPED_HOLD_BUSY;
	verdict = hold_add(ctx, w, h, slot, &length);
	base = h->base;
	hold_leave(h);
	return verdict == ANSWERED_HELLO ? hold_acknowledge(ctx, w, base + length) : verdict;
}

/* The frame is as it goes to the server: it becomes an order for lb_release, if something of its connection is held.
 * Returns an XDP action. */
inline_always int handle_hold(struct xdp_md *ctx, const struct server *server)
{
	__u32 first = 0, slot;
	struct session_found *result = bpf_map_lookup_elem(&session_result, &first);
	const struct session_work *w = bpf_map_lookup_elem(&session_works, &first);
	struct ethhdr *eth = (void *)(long)ctx->data;
	__be16 protocol = bpf_htons(ORDER_SEVERAL);
	struct hold *h;
	_Bool ours;

	if (!result || !w || !result->held)
		return transmit(ctx, server);
	slot = result->held - 1;
	result->held = 0;
	h = bpf_map_lookup_elem(&holds, &slot);
	if (!h || (void *)(eth + 1) > (void *)(long)ctx->data_end || !hold_take(h))
		return transmit(ctx, server);
	ours = h->generation == result->generation;
	if (result->detour) {
		protocol = bpf_htons(ORDER_DETOUR);
		ours = ours && h->ifindex == server->ifindex;
	} else if (ours) {
		h->ifindex = server->ifindex;
		h->front = bpf_xdp_get_buff_len(ctx) - w->frame + w->packet.l3;
		h->mtu = server->mtu;
		__builtin_memcpy(h->source_mac, eth->h_source, ETH_ALEN);
		h->protocol = eth->h_proto;
	}
	hold_leave(h);
	if (!ours)
		return transmit(ctx, server);
	*(__be16 *)eth->h_source = result->generation;
	*(__be16 *)(eth->h_source + 2) = slot;
	*(__be16 *)(eth->h_source + 4) = 0;
	eth->h_proto = protocol;
	return XDP_PASS;
}
