/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* replicas.h - Anolis: the other load balancers, the chains that replicate entries, and the entries themselves.
 *
 *   replica_now[0]: config -> replica_configs      who the others are, how they are reached, keys
 *                   view   -> replica_views        the ring as of a version: which chain a key has
 *   replica_entries, replica_answers               buckets of entries: those of chains that this node is in, and other answers
 *
 * Rows are immutable; the words of replica_now flip. Entries are shared by packets on all CPUs and by user space, which expires and copies them
 * (internal/linux/lb/replicas.go), by these rules:
 *
 * A bucket has seven places. head has a bit for each that is taken, and above them a number that grows with every change of those bits. Who takes a place
 * compares and swaps the head of the key's *first* bucket, after it has looked at both of the key's: so of two who put in the same key one sees the other.
 * A taken place with key 0 is one that is being filled; its word is written before its key. Only user space removes: it swaps the word for 0, writes
 * REPLICA_REMOVED for the key, waits until all packets that may have seen it have left the data path, and then frees the place. So a key that was
 * found is followed by its own word or by 0, whatever happens meanwhile. All other changes of an entry are one compare-and-swap of its word.
 */
#pragma once

/* Implementation constants */
#define REPLICA_SLOTS 4096 /* of the ring: the upper bits of a key */
#define REPLICA_SLOT_SHIFT 52
#define REPLICA_NODES 64
#define REPLICA_CHAIN 4 /* nodes of a chain at most */
#define REPLICA_TRIES 8 /* to put in an entry, before others are in the way for too long */
#define REPLICA_PLACES 0xfeULL /* bits of head */
#define REPLICA_CHANGE 0x100ULL /* adds one to the number of changes */
#define REPLICA_REMOVED 1

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
	__u32 ring; /* there is one, also where view is 0 for the moment: then only fresh answers count */
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

enum replica_flag {
	REPLICA_CACHEABLE = 1, /* may be answered from */
	REPLICA_DISPATCHED = 2, /* an answer: this node has dispatched the connection */
};

/* key 0: nobody's, or being filled. The word: 0, or owner (16 bits), number of its service here or 0 (16), period in which it was used last (24), flags (8). */
struct replica_entry {
	__u64 key, word;
};

struct replica_bucket {
	__u64 head, pad;
	struct replica_entry place[7];
};
_Static_assert(sizeof(struct replica_bucket) == 128, "replica_bucket");

/* max_entries of both are set by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct replica_bucket);
} replica_entries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct replica_bucket);
} replica_answers SEC(".maps");

/* What user space puts in: as many as have a key. Each process's own: it is not pinned. */
#define REPLICA_BATCH 256
struct replica_insertion {
	__u64 key, word; /* then: what is there */
	__u32 into; /* 0: replica_entries, 1: replica_answers */
	__u32 result; /* enum replica_insert */
};
_Static_assert(sizeof(struct replica_insertion) == 24, "replica_insertion");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, REPLICA_BATCH);
	__type(key, __u32);
	__type(value, struct replica_insertion);
} replica_batch SEC(".maps");

/* What a message said, for the program that goes on with its packet. */
struct replica_answer {
	__u16 owner; /* 0: nobody */
	__u16 proposed;
	__u8 flags; /* enum peer_flag */
	__u8 full; /* no table has room: go by the table of placement */
	__u16 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct replica_answer);
} replica_told SEC(".maps");

/* Of each of the two tables. Set at load time. */
const volatile __u32 replica_buckets = 1;

/* Where messages to this node go; and are there any? Each process's own, as its program is. */
__be32 replica_address[4];
volatile __u32 replica_enabled;

#define REPLICA_PERIOD_SHIFT 32
#define REPLICA_FLAGS_SHIFT 56

inline_always __u64 replica_word(__u16 owner, __u16 service, __u32 period, __u8 flags)
{
	return owner | (__u64)service << 16 | (__u64)(period & 0xffffff) << REPLICA_PERIOD_SHIFT | (__u64)flags << REPLICA_FLAGS_SHIFT;
}

inline_always __u8 replica_flags(__u64 word)
{
	return word >> REPLICA_FLAGS_SHIFT;
}

inline_always _Bool replica_is_of_period(__u64 word, __u32 period)
{
	return !(((word >> REPLICA_PERIOD_SHIFT) ^ period) & 0xffffff);
}

inline_always const struct replica_current *replicas_now(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&replica_now, &first);
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
