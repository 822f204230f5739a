/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* tunnel_sources.h - permitted sources of tunnels to services of this host, and counts of others. */
#pragma once

#include "wire/kernel.h"

struct { /* all of them */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be32[4]); /* as in struct tunnel: IPv4 is mapped */
	__type(value, __u32);
} tunnel_sources SEC(".maps");

enum tunnel_limit {
	TUNNELS_OF_ANYBODY, /* no look-up */
	TUNNELS_NOTED, /* foreign ones are accepted; all are counted */
	TUNNELS_DROPPED, /* foreign ones are dropped and counted */
};

#define TUNNEL_SLOT_BITS 10
struct tunnel_slot {
	__be32 address[4]; /* 0: free */
	enum tunnel_limit limit; /* the same in all slots */
};
_Static_assert(sizeof(struct tunnel_slot) == 20, "tunnel_slot");

struct { /* a faster copy of tunnel_sources: a source has its slot, unless another one does */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << TUNNEL_SLOT_BITS);
	__type(key, __u32);
	__type(value, struct tunnel_slot);
} tunnel_slots SEC(".maps");

struct tunnel_note {
	__be32 address[4]; /* of the last foreign source */
	__u64 seen_ns; /* its time, by the clock since boot; 0: never */
	__u64 foreign, known; /* packets */
};
_Static_assert(sizeof(struct tunnel_note) == 40, "tunnel_note");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tunnel_note);
} tunnel_notes SEC(".maps");

inline_always struct tunnel_note *tunnel_notes_here(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&tunnel_notes, &first);
}

static __noinline int tunnel_note_known(void)
{
	struct tunnel_note *notes = tunnel_notes_here();

	if (notes)
		notes->known++;
	return 1;
}

/* A source whose slot another one has, or a foreign one. */
static __noinline int tunnel_look_up(const __be32 source[4], enum tunnel_limit limit)
{
	struct tunnel_note *notes;

	if (bpf_map_lookup_elem(&tunnel_sources, source))
		return limit == TUNNELS_DROPPED ? 1 : tunnel_note_known();
	notes = tunnel_notes_here();
	if (notes) {
		__builtin_memcpy(notes->address, source, sizeof(notes->address));
		notes->seen_ns = bpf_ktime_get_coarse_ns();
		notes->foreign++;
	}
	return limit != TUNNELS_DROPPED;
}

inline_always const struct tunnel_slot *tunnel_slot_of(const __be32 source[4])
{
	__u32 mixed = source[0] ^ source[1] ^ source[2] ^ source[3],
	      slot = mixed * 0x9e3779b1u >> (32 - TUNNEL_SLOT_BITS);

	return bpf_map_lookup_elem(&tunnel_slots, &slot);
}

inline_always _Bool tunnel_is_at(const struct tunnel_slot *slot, const __be32 source[4])
{
	return slot->address[0] == source[0] && slot->address[1] == source[1] && slot->address[2] == source[2] &&
	       slot->address[3] == source[3] && (source[0] || source[1] || source[2] || source[3]);
}

inline_always _Bool tunnel_accept(const __be32 source[4])
{
	const struct tunnel_slot *slot = tunnel_slot_of(source);

	if (!slot || slot->limit == TUNNELS_OF_ANYBODY)
		return 1;
	if (tunnel_is_at(slot, source))
		return slot->limit == TUNNELS_DROPPED ? 1 : tunnel_note_known();
	return tunnel_look_up(source, slot->limit);
}

/* Is it a load balancer of the fleet, whatever the limit for others? */
inline_always _Bool tunnel_known(const __be32 source[4])
{
	const struct tunnel_slot *slot = tunnel_slot_of(source);

	return (slot && tunnel_is_at(slot, source)) || bpf_map_lookup_elem(&tunnel_sources, source);
}
