/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* placement.h - what carries no cookie: a table that is the same on every node (hash, Maglev, SHELL's candidates), and
 * the previous owners as further stops that the servers' agents walk (Beamer's daisy chain, GLB's second chance). */
#pragma once

#include "wire/kernel.h"
#include "wire/gue.h"
#include "wire/siphash.h"
#include "lb/state/service.h"

/* The servers that may have a flow's connection, in the order in which they are asked. */
struct owner_list {
	__u16 id[8]; /* 1 + STOPS_MAX, and to a power of two */
};

/* What places a flow: the same at all load balancers. */
inline_always __u64 placement_hash(const struct service *service, const __be32 client[4], __be16 client_port,
				   __be16 service_port, _Bool ipv6)
{
	__be32 placed[4] = { client[0] & (ipv6 ? service->placed_ipv6[0] : service->placed_ipv4) };

	if (ipv6) {
		placed[1] = client[1] & service->placed_ipv6[1];
		placed[2] = client[2] & service->placed_ipv6[2];
		placed[3] = client[3] & service->placed_ipv6[3];
	}
	return flow_hash(&service->placement_hash, placed, client_port & service->placed_ports,
			 service_port & service->placed_ports, ipv6);
}

/* Index of the first column of the flow's slot. */
inline_always __u32 placement_cell(const struct service *service, const __be32 client[4], __be16 client_port,
				   __be16 service_port, _Bool ipv6)
{
	__u64 hash = placement_hash(service, client, client_port, service_port, ipv6);

	return service->slots_base + (__u32)(((hash >> 32) * service->slots_count) >> 32) * service->columns;
}

inline_always const struct column *column_at(__u32 index)
{
	return bpf_map_lookup_elem(&slots, &index);
}

/* Has it had no other owner? */
inline_always _Bool has_no_past(const struct column *column)
{
	return !(column->owners[1] | column->owners[2] | column->owners[3]);
}

/* Fills the list with the owners of so many columns of a slot and their histories, column by column, or row by row
 * (by_rows). Returns how many there are. A global function: verified once. */
__noinline int earlier_owners(__u32 cell, __u32 columns, __u32 by_rows, struct owner_list *list)
{
	__u32 count = 0;

	if (!list)
		return 0;
	for (__u32 i = 0; i < CANDIDATES_MAX * HISTORY_MAX; i++) {
		__u32 column = by_rows ? i % CANDIDATES_MAX : i / HISTORY_MAX,
		      row = by_rows ? i / CANDIDATES_MAX : i % HISTORY_MAX;
		const struct column *owners = column < columns ? column_at(cell + column) : 0;
		__u32 at;
		__u16 id = owners ? owners->owners[row & (HISTORY_MAX - 1)] : NO_ID;

		if (id == NO_ID || count > STOPS_MAX)
			continue;
		at = count++;
		asm volatile("" : "+r"(at)); /* what is masked is what is used */
		list->id[at & 7] = id;
	}
	return count;
}
