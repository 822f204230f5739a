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

struct { /* old ones go by themselves, and what is late for them leaves */
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, __u32); /* enum probe_fate */
} probes SEC(".maps");

volatile __u32 probing; /* there have been probes: else nobody pays for looking */

/* Is it because of a probe? For SYNs, SYN-ACKs and RSTs. */
static __noinline int is_probe(struct __sk_buff *skb, const struct flow *f)
{
	struct flow_key key = {};
	__u32 *fate;

	if (!f || !probing)
		return 0;
	flow_key_fill(&key, f);
	fate = bpf_map_lookup_elem(&probes, &key);
	if (fate) {
		*fate = f->tcp_flags & TCP_FLAG_SYN_BIT	  ? PROBE_ANSWERED
			: skb->sk || skb->ingress_ifindex ? PROBE_REFUSED
							  : PROBE_REJECTED;
		return 1;
	}
	if (f->tcp_flags & TCP_FLAG_SYN_BIT && f->tcp_flags & TCP_FLAG_ACK_BIT)
		return 0;
	__builtin_memcpy(key.service.address, f->client, sizeof(f->client));
	__builtin_memcpy(key.client, f->key.address, sizeof(f->key.address));
	key.service.port = f->client_port;
	key.client_port = f->key.port;
	fate = bpf_map_lookup_elem(&probes, &key);
	if (fate && f->tcp_flags & TCP_FLAG_SYN_BIT)
		*fate = PROBE_RETURNED;
	return !!fate;
}
