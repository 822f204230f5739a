/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* placement.h - what carries no cookie: a table that is the same on every node (hash, Maglev), and the previous owners
 * as further stops that the servers' agents walk (Beamer's daisy chain, GLB's second chance). */
#pragma once

inline_always const struct slot *placement_slot(const struct service *service, const __be32 client[4],
						__be16 client_port, __be16 service_port, _Bool ipv6)
{
	__u64 hash = flow_hash(&service->placement_hash, client, client_port, service_port, ipv6);
	__u32 index = service->slots_base + (__u32)(((hash >> 32) * service->slots_count) >> 32);

	return service->slots_count ? bpf_map_lookup_elem(&slots, &index) : 0;
}

/* The owner, and for what may belong to an earlier one, where else to look. */
inline_always __u16 place(const struct slot *slot, _Bool may_be_older, __u16 stops[PREVIOUS_OWNERS])
{
	__u16 id;

	if (!slot)
		return NO_ID;
	id = slot->owner;
	if (!may_be_older)
		return id;
	stops[0] = slot->previous[0];
	stops[1] = slot->previous[1];
	if (id == NO_ID) { /* nobody takes new connections: start with the last owner */
		id = stops[0];
		stops[0] = stops[1];
		stops[1] = NO_ID;
	}
	return id;
}
