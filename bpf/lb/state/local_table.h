/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* local_table.h - the baseline: a hash map of this node's own, as Katran's and Spotlight's connection tables. */
#pragma once

#include "wire/kernel.h"
#include "lb/state/node.h"

/* In an id: the client has sent a FIN, so that a SYN begins another connection. */
#define LOCAL_ENDED (1ULL << 32)

struct local_connection {
	__u64 id; /* server or predecessor, and LOCAL_ENDED */
	__u64 packets, bytes;
	__u32 first, last; /* as in struct connection */
};
_Static_assert(sizeof(struct local_connection) == 32, "local_connection");

/* User space sets size and, for measurements, the type: BPF_MAP_TYPE_HASH does not evict. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct connection_key);
	__type(value, struct local_connection);
} local_connections SEC(".maps");
