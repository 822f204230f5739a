/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* session_clients.h - session tls: which clients have shown the name of a session lately, so that many of them do not
 * reach one server by one ticket (Yuz V-B). Departs from it: a client changes its address now and then, so some
 * addresses are let through before others are not.
 *
 * Set-associative arrays: they never grow, and nothing is allocated. A full set forgets the name of the fewest clients,
 * so what many have shown stays for its whole window. CPUs share them without a lock; a race costs a count. */
#pragma once

#include "wire/kernel.h"
#include "wire/mix.h"
#include "wire/parse.h"
#include "wire/siphash.h"

#define SESSION_SETS 8192 /* a power of two */
#define SESSION_NAMES 4 /* of a set */
#define SESSION_CLIENTS_MAX 32 /* of a name */
#define SESSION_CLIENTS_SHIFT 33 /* of ns, to units of 8.6 s */
#define SESSION_CLIENTS_WINDOW 64 /* units: after 9.2 minutes all but the first client are forgotten */

/* Most names have one client: they need this cache line alone. */
struct session_set {
	__u64 names[SESSION_NAMES]; /* tag (32 bits) | when the window began (16) | how many clients (16) */
	__u32 first[SESSION_NAMES]; /* client, as session_client makes it */
	__u64 pad[2];
};
_Static_assert(sizeof(struct session_set) == 64, "session_set");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SESSION_SETS);
	__type(key, __u32);
	__type(value, struct session_set);
} session_sets SEC(".maps");

/* The other clients of a name. Index: set * SESSION_NAMES + slot. */
struct session_clients {
	__u32 others[SESSION_CLIENTS_MAX - 1], pad;
};
_Static_assert(sizeof(struct session_clients) == 128, "session_clients");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SESSION_SETS *SESSION_NAMES);
	__type(key, __u32);
	__type(value, struct session_clients);
} session_others SEC(".maps");

/* An address of IPv4; a network of IPv6, which is what a host has. By multiplication under a key: nobody can choose
 * networks that look alike (Dietzfelbinger et al. 1997). */
inline_always __u32 session_client(const struct siphash_key *key, const struct packet *p)
{
	__u64 network = p->source[0] | (__u64)p->source[1] << 32;

	return p->ipv6 ? network * (key->k0 | 1) >> 32 : p->source[0];
}

/* Is it among those of a name that has so many? If not, it becomes one, if there is room. */
inline_always _Bool session_lets_other(__u64 *name, __u32 slot, __u32 client, __u32 count, __u32 most)
{
	struct session_clients *c = bpf_map_lookup_elem(&session_others, &slot);

	if (!c)
		return 1;
	for (__u32 i = 0; i < SESSION_CLIENTS_MAX - 1 && i + 1 < count; i++)
		if (c->others[i] == client)
			return 1;
	if (count >= most)
		return 0;
	count = (__sync_fetch_and_add(name, 1) & 0xffff) - 1;
	if (count + 1 >= most || count >= SESSION_CLIENTS_MAX - 1) /* another CPU was first */
		return 0;
	c->others[count] = client;
	return 1;
}

/* Is a client among the first so many that have shown the name in its window? A global function: verified once. */
__noinline int session_lets(__u64 name, __u32 client, __u32 most)
{
	__u16 now = bpf_ktime_get_coarse_ns() >> SESSION_CLIENTS_SHIFT;
	__u64 mixed = mix64(name), begun = (mixed >> 32) << 32 | (__u32)now << 16 | 1;
	__u32 tag = mixed >> 32, set = mixed & (SESSION_SETS - 1), slot = 0, least = ~0U;
	struct session_set *s = bpf_map_lookup_elem(&session_sets, &set);

	if (!s)
		return 1;
	for (__u32 i = 0; i < SESSION_NAMES; i++) {
		__u64 word = s->names[i];
		__u32 count = word & 0xffff;
		_Bool over = (__u16)(now - (__u16)(word >> 16)) >= SESSION_CLIENTS_WINDOW;

		if (count && word >> 32 == tag) {
			if (over) { /* the next window: the first client, whose session it most likely is, has not to be
				       quicker than others */
				s->names[i] = begun;
				count = 1;
			}
			return s->first[i] == client ||
			       session_lets_other(&s->names[i], set * SESSION_NAMES + i, client, count, most);
		}
		if (over)
			count = 0;
		if (count < least) {
			least = count;
			slot = i;
		}
	}
	slot &= SESSION_NAMES - 1;
	s->names[slot] = begun;
	s->first[slot] = client;
	return 1;
}
