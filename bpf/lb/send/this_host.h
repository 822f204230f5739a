/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* this_host.h - a host that is a load balancer and a server. The load balancer's program has the XDP hook, and the
 * agent's runs behind it, on two kinds of packets: those that are passed to the host (among them tunnels from other
 * load balancers), and those whose server is this host, encapsulated as they are for all others. */
#pragma once

#include "wire/kernel.h"
#include "lb/state/node.h"
#include "lb/state/service.h"

/* Empty: no agent runs behind this program. Shared with the agent, by a pin of the network namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} agent_program SEC(".maps");

/* To the agent or, without one, to the host's stack. */
inline_always int pass_to_host(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &agent_program, 0);
	return XDP_PASS;
}

/* To the server on this host: addressed to the device that the packet came in by, whichever that is. */
inline_always int deliver_here(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	__u32 ifindex = ctx->ingress_ifindex;
	const struct interface *interface = &interfaces[ifindex % INTERFACES];

	if (data + sizeof(struct ethhdr) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	if (interface->ifindex == ifindex)
		__builtin_memcpy(data, interface->mac, ETH_ALEN);
	return pass_to_host(ctx);
}
