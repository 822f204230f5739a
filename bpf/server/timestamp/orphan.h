/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* orphan.h - an empty ACK of no connection here, whose echo this server did not write, is ignored once.
 *
 * SYNPROXY of Linux ends its handshake with a server by an ACK whose TSecr it has shifted twice: no load balancer can
 * read from it where it belongs. A server without the connection would answer with RST and end it. The right server
 * ignores the ACK since Linux 6.15; before, it would accept the echo as its own. The next segment, whose echo is right,
 * completes the handshake. A repeated one is left to the kernel, so that half-open connections end.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "server/agent.h"
#include "server/socket/socket.h"
#include "server/flow/flow.h"
#include "server/timestamp/mark.h"

/* Implementation constants */
#define ORPHAN_SLOTS 16384
#define ORPHAN_MEMORY_MS \
	120000 /* more than the 75 s between a keepalive's probes, less than it takes to use most ports again */
#define ORPHAN_EARLY_MS 4000 /* in which a client retransmits its first segment twice at least */

/* By hash of the flow: 32 further bits of the hash, and the time. The newest flow replaces others, which are then
 * ignored once more. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ORPHAN_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} orphans SEC(".maps");

/* The age of the first orphan of the flow. 0: this is the first, as far as is known. */
static __noinline __u32 orphan_age_ms(const struct served *served, const struct flow *f)
{
	__u32 slot, now = socket_clock_ms(), age;
	__u64 hash, *last;

	if (!served || !f)
		return ORPHAN_MEMORY_MS;
	hash = mark_hash(served, f, served->epoch_parity);
	slot = hash & (ORPHAN_SLOTS - 1);
	last = bpf_map_lookup_elem(&orphans, &slot);
	if (!last)
		return ORPHAN_MEMORY_MS;
	age = now - (__u32)*last;
	if (*last >> 32 == hash >> 32 && age < ORPHAN_MEMORY_MS)
		return age ? age : 1;
	*last = hash >> 32 << 32 | now;
	return 0;
}

/* session tls: may a packet have overtaken the first one of its connection? */
inline_always _Bool is_early(const struct served *served, const struct flow *f)
{
	return orphan_age_ms(served, f) < ORPHAN_EARLY_MS;
}

static __noinline int is_first_orphan(struct __sk_buff *skb, const struct served *served, const struct flow *f)
{
	if (!served || !f || skb->len != (__u32)f->l4 + f->header ||
	    (f->tcp_flags & (TCP_FLAG_SYN_BIT | TCP_FLAG_FIN_BIT | TCP_FLAG_RST_BIT)) ||
	    mark_read_tag(served, f, bpf_ntohl(f->echo)) >= 0)
		return 0;
	return !orphan_age_ms(served, f);
}
