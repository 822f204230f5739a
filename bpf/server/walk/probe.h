/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* probe.h - SYNs that the agent has its own host receive, to see what becomes of a service's packets here. What the
 * host sends because of them is noted, and does not leave it.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "server/agent.h"
#include "server/flow/flow.h"
#include "server/timestamp/hold_back.h"

enum probe_fate {
	PROBE_UNANSWERED,
	PROBE_ANSWERED, /* by a SYN-ACK */
	PROBE_REFUSED, /* by an RST or ICMP of a socket's host: there is no listener */
	PROBE_REJECTED, /* by an RST or ICMP of this host: its firewall, it seems */
	PROBE_RETURNED, /* it was on its way back to the network */
	PROBE_UNREACHABLE, /* ICMP says that it does not arrive */
};
const enum probe_fate *probe_fates __attribute__((unused)); /* keeps the enum in BTF */

#define PROBE_FATE_BITS 8
#define PROBE_TIME_SHIFT 30 /* of bpf_ktime_get_ns: 1.07 s */
#define PROBE_LIFE 8 /* of these. A client with a probe's address and port gets no answer for so long at most */

struct { /* what is late for a probe leaves */
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, __u32); /* enum probe_fate, and above it when it was sent */
} probes SEC(".maps");

volatile __u32 probing; /* there have been probes: else nobody pays for looking */

/* The note of a probe of late; 0: there is none. The agent may have ended before it could take one away. */
inline_always __u32 *probe_note(const struct flow_key *key)
{
	__u32 *note = bpf_map_lookup_elem(&probes, key), now;

	if (!note)
		return 0;
	now = bpf_ktime_get_ns() >> PROBE_TIME_SHIFT;
	return (now - (*note >> PROBE_FATE_BITS)) << PROBE_FATE_BITS < PROBE_LIFE << PROBE_FATE_BITS ? note : 0;
}

inline_always void probe_ends(__u32 *note, enum probe_fate fate)
{
	*note = *note >> PROBE_FATE_BITS << PROBE_FATE_BITS | fate;
}

/* Is it because of a probe? For SYNs, SYN-ACKs and RSTs. */
static __noinline int is_probe(struct __sk_buff *skb, const struct flow *f)
{
	struct flow_key key = {};
	__u32 *note;

	if (!f || !probing)
		return 0;
	flow_key_fill(&key, f);
	note = probe_note(&key);
	if (note) {
		probe_ends(note, f->tcp_flags & TCP_FLAG_SYN_BIT   ? PROBE_ANSWERED
				 : skb->sk || skb->ingress_ifindex ? PROBE_REFUSED
								   : PROBE_REJECTED);
		return 1;
	}
	if (f->tcp_flags & TCP_FLAG_SYN_BIT && f->tcp_flags & TCP_FLAG_ACK_BIT)
		return 0;
	__builtin_memcpy(key.service.address, f->client, sizeof(f->client));
	__builtin_memcpy(key.client, f->key.address, sizeof(f->key.address));
	key.service.port = f->client_port;
	key.client_port = f->key.port;
	note = probe_note(&key);
	if (note && f->tcp_flags & TCP_FLAG_SYN_BIT)
		probe_ends(note, PROBE_RETURNED);
	return !!note;
}
