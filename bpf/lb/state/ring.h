/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ring.h - Anolis: the other load balancers, and the chains of them that replicate entries.
 *
 *   replica_now[0]: config -> replica_configs      who the others are, how they are reached, keys
 *                   view   -> replica_views        the ring as of a version: which chain a key has
 *
 * Rows are immutable; the words of replica_now flip. */
#pragma once

#include "wire/kernel.h"
#include "wire/siphash.h"
#include "lb/state/service.h"

/* Implementation constants */
#define REPLICA_SLOTS 4096 /* of the ring: the upper bits of a key */
#define REPLICA_SLOT_SHIFT 52
#define REPLICA_NODES 64
#define REPLICA_CHAIN 4 /* nodes of a chain at most */

struct replica_config {
	struct siphash_state key_hash; /* of connections */
	struct siphash_state mac_hash[2]; /* by parity of the epoch */
	__be32 address[4]; /* where others send to this node */
	__u16 self;
	__u8 ipv6; /* of all nodes' addresses */
	__u8 parity; /* of the epoch in use */
	__u8 known[2]; /* by parity: there is such a key */
	__u16 pad;
	struct server peers[REPLICA_NODES]; /* by number */
};
_Static_assert(sizeof(struct replica_config) == 120 + 64 * REPLICA_NODES, "replica_config");

struct replica_chain {
	__u16 node[REPLICA_CHAIN]; /* head first */
	__u32 since; /* version since which it is what it is */
	__u32 length;
};
_Static_assert(sizeof(struct replica_chain) == 16, "replica_chain");

/* Keys of a slot have one of two chains: nodes stand so far apart that no slot has parts of three arcs. */
struct replica_slot {
	__u32 boundary; /* the upper 32 bits of keys below it: chain below, else above */
	__u16 below, above;
};
_Static_assert(sizeof(struct replica_slot) == 8, "replica_slot");

struct replica_view {
	__u32 version;
	__u32 hop_limit;
	struct replica_chain chains[REPLICA_NODES];
	struct replica_slot slots[REPLICA_SLOTS];
};

/* What flips. 0: none. */
struct replica_current {
	__u32 config, view; /* rows */
	__u32 period; /* deletion interval of this node, since its entries were empty */
	__u32 ring; /* there is one, also where view is 0 for the moment: then only answers count */
	__u64 incarnation; /* of the entries: another one, and they were lost */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct replica_current);
} replica_now SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 3); /* old and new stand side by side; 0 is none */
	__type(key, __u32);
	__type(value, struct replica_config);
} replica_configs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, struct replica_view);
} replica_views SEC(".maps");

/* Where messages to this node go; and are there any? Each process's own, as its program is. */
__be32 replica_address[4];
volatile __u32 replica_enabled;

inline_always const struct replica_current *replicas_now(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&replica_now, &first);
}

/* Are entries replicated? Also where there is no view for the moment, and where others do not know this node yet. */
inline_always _Bool has_ring(const struct replica_current *now)
{
	return now && (now->view || now->ring);
}

/* 0: this node knows no others. */
inline_always const struct replica_config *replica_config_now(const struct replica_current *now)
{
	__u32 row = *(const volatile __u32 *)&now->config;

	return row ? bpf_map_lookup_elem(&replica_configs, &row) : 0;
}

/* 0: there is no ring yet. */
inline_always const struct replica_view *replica_view_now(const struct replica_current *now)
{
	__u32 row = *(const volatile __u32 *)&now->view;

	return row ? bpf_map_lookup_elem(&replica_views, &row) : 0;
}

inline_always const struct replica_chain *replica_chain_of(const struct replica_view *view, __u64 key)
{
	const struct replica_slot *slot = &view->slots[key >> REPLICA_SLOT_SHIFT & (REPLICA_SLOTS - 1)];
	__u32 arc = key >> 32 < slot->boundary ? slot->below : slot->above;

	return &view->chains[arc & (REPLICA_NODES - 1)];
}
