/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* session_clients.h - session tls: which clients have shown the name of a session lately, so that many of them do not reach one server by one ticket
 * (Yuz V-B). Departs from it: a client changes its address now and then, so some addresses are let through before others are not.
 *
 * A set-associative array: it never grows, and an update allocates nothing. A full set forgets the name of the fewest clients, so what has been shown
 * by many stays for its whole window. CPUs share it without a lock; a race costs a count. */
#pragma once

#define SESSION_CLIENT_SETS 8192 /* a power of two */
#define SESSION_NAMES 4 /* of a set */
#define SESSION_CLIENTS_MAX 32 /* of a name: a power of two */
#define SESSION_CLIENTS_SHIFT 33 /* of ns, to units of 8.6 s */
#define SESSION_CLIENTS_WINDOW 64 /* units: after 9.2 minutes a name begins again */

struct session_clients {
	__u64 names[SESSION_NAMES]; /* tag (32 bits) | when the window began (16) | how many clients (16) */
	__u32 clients[SESSION_NAMES][SESSION_CLIENTS_MAX]; /* as session_client makes them */
};
_Static_assert(sizeof(struct session_clients) == 544, "session_clients");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SESSION_CLIENT_SETS);
	__type(key, __u32);
	__type(value, struct session_clients);
} session_clients SEC(".maps");

/* An address of IPv4; a network of IPv6, which is what a host has. By multiplication under a key: nobody can choose networks that look alike (Dietzfelbinger et
 * al. 1997). */
inline_always __u32 session_client(const struct siphash_key *key, const struct packet *p)
{
	__u64 network = p->source[0] | (__u64)p->source[1] << 32;

	return p->ipv6 ? network * (key->k0 | 1) >> 32 : p->source[0];
}

/* Is a client among the first so many that have shown the name in its window? It is if there is room. A global function: it is verified once. */
__noinline int session_lets(__u64 name, __u32 client, __u32 most)
{
	__u64 mixed = mix64(name), word, least = ~0ULL;
	__u16 now = bpf_ktime_get_coarse_ns() >> SESSION_CLIENTS_SHIFT;
	__u32 tag = mixed >> 32, set = mixed & (SESSION_CLIENT_SETS - 1), way = 0, count;
	struct session_clients *s = bpf_map_lookup_elem(&session_clients, &set);

	if (!s)
		return 1;
	for (__u32 i = 0; i < SESSION_NAMES; i++) {
		word = s->names[i];
		count = (__u16)(now - (__u16)(word >> 16)) < SESSION_CLIENTS_WINDOW ? word & 0xffff : 0;
		if (count && word >> 32 == tag)
			goto known;
		if (count < least) {
			least = count;
			way = i;
		}
		continue;
known:
		for (__u32 j = 0; j < SESSION_CLIENTS_MAX && j < count; j++)
			if (s->clients[i][j] == client)
				return 1;
		if (count >= most)
			return 0;
		count = __sync_fetch_and_add(&s->names[i], 1) & 0xffff;
		if (count >= most) /* another CPU was first */
			return 0;
		s->clients[i][count & (SESSION_CLIENTS_MAX - 1)] = client;
		return 1;
	}
	s->names[way & (SESSION_NAMES - 1)] = (__u64)tag << 32 | (__u32)now << 16 | 1;
	s->clients[way & (SESSION_NAMES - 1)][0] = client;
	return 1;
}
