/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* tunnel_sources.h - who may open tunnels to services of this host. */
#pragma once

struct { /* all of them, if that is limited */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be32[4]);
	__type(value, __u32);
} tunnel_sources SEC(".maps");

#define TUNNEL_PLACE_BITS 10
struct tunnel_place {
	__be32 address[4]; /* 0: of nobody */
	__u32 limited; /* the same in all places. 0: anybody may open tunnels */
};
_Static_assert(sizeof(struct tunnel_place) == 20, "tunnel_place");

struct { /* a faster copy of tunnel_sources: a source is in its place, unless another one has it */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << TUNNEL_PLACE_BITS);
	__type(key, __u32);
	__type(value, struct tunnel_place);
} tunnel_places SEC(".maps");

inline_always _Bool tunnel_source_known(const __be32 source[4])
{
	__u32 mixed = source[0] ^ source[1] ^ source[2] ^ source[3], place = mixed * 0x9e3779b1u >> (32 - TUNNEL_PLACE_BITS);
	const struct tunnel_place *known = bpf_map_lookup_elem(&tunnel_places, &place);

	if (!known || !known->limited)
		return 1;
	if (known->address[0] == source[0] && known->address[1] == source[1] && known->address[2] == source[2] && known->address[3] == source[3])
		return mixed || source[0] || source[1] || source[2];
	return bpf_map_lookup_elem(&tunnel_sources, source) != 0;
}
