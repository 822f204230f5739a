/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* stray.h - an empty ACK whose echo this server did not write, for no connection that it has, is ignored once.
 *
 * SYNPROXY of Linux ends its handshake with a server by an ACK whose TSecr it has shifted twice: no load balancer can read from it where
 * it belongs. A server that knows nothing of it would answer with RST, and end the connection. The one that it is for ignores it since
 * Linux 6.15; before, it would take the echo for its own. The next segment, whose echo is right, completes the handshake. What comes
 * again is left to the kernel, so that half-open connections end.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "server/agent.h"
#include "server/socket/socket.h"
#include "server/flow/flow.h"
#include "server/timestamp/mark.h"

/* Implementation constants */
#define STRAY_SLOTS 16384
#define STRAY_MEMORY_MS 120000 /* more than the 75 s between a keepalive's probes, less than it takes to use most ports again */
#define STRAY_EARLY_MS 4000 /* in which a client sends the first one of several segments again, twice at least */

/* By hash of the flow: 32 further bits of the hash, and when. The newest stands; who fills it makes others be ignored once more. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STRAY_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} strays SEC(".maps");

/* How long ago came the first packet of a flow that nothing explains? 0: this is it, as far as is known. */
static __noinline __u32 stray_age_ms(const struct served *served, const struct flow *f)
{
	__u32 slot, now = socket_clock_ms(), age;
	__u64 hash, *last;

	if (!served || !f)
		return STRAY_MEMORY_MS;
	hash = mark_hash(served, f, served->epoch_parity);
	slot = hash & (STRAY_SLOTS - 1);
	last = bpf_map_lookup_elem(&strays, &slot);
	if (!last)
		return STRAY_MEMORY_MS;
	age = now - (__u32)*last;
	if (*last >> 32 == hash >> 32 && age < STRAY_MEMORY_MS)
		return age ? age : 1;
	*last = hash >> 32 << 32 | now;
	return 0;
}

/* session tls: may a packet have overtaken the first one of its connection? */
inline_always _Bool is_early(const struct served *served, const struct flow *f)
{
	return stray_age_ms(served, f) < STRAY_EARLY_MS;
}

static __noinline int is_first_stray(struct __sk_buff *skb, const struct served *served, const struct flow *f)
{
	if (!served || !f || skb->len != (__u32)f->l4 + f->header ||
	    (f->tcp_flags & (TCP_FLAG_SYN_BIT | TCP_FLAG_FIN_BIT | TCP_FLAG_RST_BIT)) ||
	    mark_read_tag(served, f, bpf_ntohl(f->echo)) >= 0)
		return 0;
	return !stray_age_ms(served, f);
}
