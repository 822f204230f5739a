/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* refused.h - session tls: does the kernel reset connections that were taken over? Its address translation may throw
 * away the socket that a packet was given (nf_nat_ipv4_local_in); TCP then finds no connection and answers by RST in
 * the same moment. */
#pragma once

#include "wire/kernel.h"
#include "server/agent.h"
#include "server/flow/flow.h"
#include "server/socket/socket.h"
#include "server/timestamp/mark.h"

/* Implementation constants */
#define TAKEN_SLOTS 4096
#define TAKEN_MEMORY_MS \
	100 /* less than ORPHAN_EARLY_MS, before which nothing else of such a client reaches the kernel */

/* By hash of the flow: 32 further bits of the hash, mixed with the sequence number of an RST, and when. The newest
 * stands; what it replaces is not counted. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TAKEN_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} taken SEC(".maps");

inline_always __u64 *taken_find(const struct served *served, const struct flow *f, __u32 acknowledged, __u64 *value)
{
	__u64 hash = mark_hash(served, f, served->epoch_parity);
	__u32 slot = hash & (TAKEN_SLOTS - 1);

	*value = ((hash >> 32) ^ acknowledged) << 32 | socket_clock_ms();
	return bpf_map_lookup_elem(&taken, &slot);
}

/* acknowledged: what the packet that was taken over acknowledges, the sequence number of an RST that answers it (RFC
 * 9293 3.10.7.1). */
inline_always void note_taken(const struct served *served, const struct flow *f, __u32 acknowledged)
{
	__u64 value, *last = taken_find(served, f, acknowledged, &value);

	if (last)
		*last = value;
}

/* For an RST that leaves without a connection. It is counted once. */
static __noinline int was_taken_over(struct __sk_buff *skb, const struct served *served, const struct flow *f)
{
	__u64 value, *last;
	__be32 sequence;

	if (!served || !f || bpf_skb_load_bytes(skb, f->l4 + 4, &sequence, sizeof(sequence)))
		return 0;
	last = taken_find(served, f, bpf_ntohl(sequence), &value);
	if (!last || *last >> 32 != value >> 32 || (__u32)value - (__u32)*last > TAKEN_MEMORY_MS)
		return 0;
	*last = 0;
	return 1;
}
