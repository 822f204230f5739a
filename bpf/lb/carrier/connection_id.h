/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* connection_id.h - where the connection id of a QUIC packet is: only what holds for all versions (RFC 8999). Of a
 * datagram the first packet counts (RFC 9000 12.2). */
#pragma once

#include "wire/kernel.h"

#define QUIC_LONG_HEADER 0x80
#define QUIC_ID_MAX 20
#define QUIC_ID_DRAWN 8 /* bytes at least of an id that a client draws (RFC 9000 7.2) */

struct connection_id {
	__u32 at; /* in the frame; 0: the packet has none */
	__u8 length; /* 0: a short header does not say */
	_Bool is_long;
};

/* Of what a client sends, beginning at `at`; quoted: of what a server has sent, of which a long header alone names the
 * server. head: memory for it. */
inline_always struct connection_id find_connection_id(struct xdp_md *ctx, __u32 at, _Bool quoted, __u8 head[8])
{
	struct connection_id none = {}, id = {};

	if (bpf_xdp_load_bytes(ctx, at, head, 6))
		return none;
	id.is_long = head[0] & QUIC_LONG_HEADER;
	if (!id.is_long) {
		id.at = at + 1;
		return quoted ? none : id;
	}
	id.at = at + 6;
	id.length = head[5];
	if (quoted) {
		if (id.length > QUIC_ID_MAX || bpf_xdp_load_bytes(ctx, id.at + id.length, head, 1))
			return none;
		id.at += id.length + 1;
		id.length = head[0];
	}
	return id;
}
