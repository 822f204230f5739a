/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* two_choices.h - p2c: of two servers drawn at random, the one with fewer open connections (Mitzenmacher 1996, Cheetah II). */
#pragma once

inline_always __s32 *server_load(const struct service *service, __u16 id)
{
	const struct server *server = server_by_id(service, id);
	__u32 counter;

	if (!server)
		return 0;
	counter = server->counter;
	return bpf_map_lookup_elem(&server_loads, &counter);
}

inline_always __u16 dispatch_by_two_choices(const struct service *service)
{
	__u32 random = bpf_get_prandom_u32();
	__u32 count = service->rounds_count;
	__u16 a, b;
	__s32 *load_a, *load_b;

	if (!count)
		return NO_ID;
	a = round_entry(service, (random & 0xffff) * count >> 16);
	b = round_entry(service, (random >> 16) * count >> 16);
	load_a = server_load(service, a);
	load_b = server_load(service, b);
	if (!load_a || !load_b)
		return a;
	return *load_b < *load_a ? b : a;
}

/* Connections this node sent to the server: +1 at a SYN, -1 at the client's FIN or RST. */
inline_always void two_choices_learn(const struct server *server, __s32 change)
{
	__u32 counter = server->counter;
	__s32 *load = bpf_map_lookup_elem(&server_loads, &counter);

	if (load && (change > 0 || *load > 0))
		__sync_fetch_and_add(load, change);
}
