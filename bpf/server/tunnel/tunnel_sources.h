/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* tunnel_sources.h - who may open tunnels to services of this host, and who else tries. */
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
	TUNNELS_OF_ANYBODY, /* nobody is looked up */
	TUNNELS_NOTED, /* those of strangers are taken; all are noted */
	TUNNELS_DROPPED, /* those of strangers are dropped and noted */
};

#define TUNNEL_PLACE_BITS 10
struct tunnel_place {
	__be32 address[4]; /* 0: of nobody */
	enum tunnel_limit limit; /* the same in all places */
};
_Static_assert(sizeof(struct tunnel_place) == 20, "tunnel_place");

struct { /* a faster copy of tunnel_sources: a source is in its place, unless another one has it */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << TUNNEL_PLACE_BITS);
	__type(key, __u32);
	__type(value, struct tunnel_place);
} tunnel_places SEC(".maps");

struct tunnel_note {
	__be32 address[4]; /* of the last stranger */
	__u64 seen_ns; /* when it was, by the clock since boot; 0: never */
	__u64 strangers, known; /* packets */
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

/* Whose place another one has, or a stranger. */
static __noinline int tunnel_taken_slowly(const __be32 source[4], enum tunnel_limit limit)
{
	struct tunnel_note *notes;

	if (bpf_map_lookup_elem(&tunnel_sources, source))
		return limit == TUNNELS_DROPPED ? 1 : tunnel_note_known();
	notes = tunnel_notes_here();
	if (notes) {
		__builtin_memcpy(notes->address, source, sizeof(notes->address));
		notes->seen_ns = bpf_ktime_get_coarse_ns();
		notes->strangers++;
	}
	return limit != TUNNELS_DROPPED;
}

inline_always const struct tunnel_place *tunnel_place_of(const __be32 source[4])
{
	__u32 mixed = source[0] ^ source[1] ^ source[2] ^ source[3], place = mixed * 0x9e3779b1u >> (32 - TUNNEL_PLACE_BITS);

	return bpf_map_lookup_elem(&tunnel_places, &place);
}

inline_always _Bool tunnel_is_at(const struct tunnel_place *place, const __be32 source[4])
{
	return place->address[0] == source[0] && place->address[1] == source[1] && place->address[2] == source[2] && place->address[3] == source[3] &&
	       (source[0] || source[1] || source[2] || source[3]);
}

inline_always _Bool tunnel_taken(const __be32 source[4])
{
	const struct tunnel_place *place = tunnel_place_of(source);

	if (!place || place->limit == TUNNELS_OF_ANYBODY)
		return 1;
	if (tunnel_is_at(place, source))
		return place->limit == TUNNELS_DROPPED ? 1 : tunnel_note_known();
	return tunnel_taken_slowly(source, place->limit);
}

/* Is it a load balancer of the fleet, whatever becomes of the tunnels of others? */
inline_always _Bool tunnel_known(const __be32 source[4])
{
	const struct tunnel_place *place = tunnel_place_of(source);

	return (place && tunnel_is_at(place, source)) || bpf_map_lookup_elem(&tunnel_sources, source);
}
