/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* port_ranges.h - destinations that are ranges of ports. The key of an address, port 0 and a protocol names a list of
 * them, which is asked for ports that no key of their own has. Lists are immutable once published: user space writes a
 * new one, then flips the u32 that names it. */
#pragma once

#include "wire/kernel.h"

#define PORT_RANGES 0x8000 /* in the value of a key: the rest is the index of a list */
#define PORT_RANGES_MOST 32 /* of a list: those before and after a change stand side by side */

/* Of two that have a port the first counts. One that is not used has no port. */
struct port_range {
	__u16 first, last;
	__u32 value; /* as of a key */
	__u32 fast; /* load balancers: as in struct vip_slot */
};

struct port_ranges {
	struct port_range range[PORT_RANGES_MOST];
};
_Static_assert(sizeof(struct port_ranges) == 12 * PORT_RANGES_MOST, "port_ranges");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct port_ranges);
} port_ranges SEC(".maps");

/* Whether there are any: else nothing is looked up twice. Each process's own. */
volatile __u32 port_ranges_used;

/* Where in a list a port is, from 1; 0: nowhere. A global function: verified once. */
__noinline int port_range_at(__u32 list, __u32 port)
{
	const struct port_ranges *ranges = bpf_map_lookup_elem(&port_ranges, &list);

	if (!ranges)
		return 0;
	for (__u32 i = 0; i < PORT_RANGES_MOST; i++) {
		const struct port_range *range = &ranges->range[i];

		if (port >= range->first && port <= range->last)
			return i + 1;
	}
	return 0;
}

inline_always const struct port_range *port_range_find(__u32 value, __be16 port)
{
	__u32 list = value & (PORT_RANGES - 1), at = port_range_at(list, bpf_ntohs(port));
	const struct port_ranges *ranges;

	if (!at)
		return 0;
	ranges = bpf_map_lookup_elem(&port_ranges, &list);
	if (!ranges)
		return 0;
	at = (at - 1) & (PORT_RANGES_MOST - 1);
	asm volatile("" : "+r"(at)); /* not before the check */
	return &ranges->range[at & (PORT_RANGES_MOST - 1)];
}
