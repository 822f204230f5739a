/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* agent.h - the maps of the server role, in packet order. */
#pragma once

#include "wire/kernel.h"
#include "wire/port_ranges.h"
#include "wire/siphash.h"

/* A service as this server sees it. Same layout as the load balancer's vip_key. */
struct served_key {
	__be32 address[4];
	__be16 port; /* 0 with protocol 0: the address itself, for what has no port; else ranges of ports */
	__u8 protocol;
	__u8 ipv6;
};
_Static_assert(sizeof(struct served_key) == 20, "served_key");

enum served_flag {
	SERVED_COOKIE = 1, /* timestamps are marked */
	SERVED_RETIRED = 2, /* no longer marks: only for the connections that carry its cookie */
	SERVED_CHOICES = 4, /* SYNs with stops may be passed on */
	SERVED_HISTORY = 8, /* with the column that the connection was accepted in, and nothing else: cookie_bits is
			       HISTORY_BITS */
	SERVED_TAKES_OVER = 32, /* connections may have been begun by load balancers */
	SERVED_SESSION = 64, /* they are: also what has no timestamps is looked at */
	SERVED_PROXIED = 128, /* syn_proxy: also, and an empty acknowledgement begins a connection */
	SERVED_NO_NEW = 16, /* with SERVED_CHOICES: this server is draining */
};

/* Immutable once published: user space writes a new row, then flips the u32 in served that names it. */
struct served {
	struct siphash_key cookie_key[2]; /* by parity of the epoch */
	struct siphash_key syn_cookie_key; /* with SERVED_TAKES_OVER */
	__u16 id;
	__u8 cookie_bits;
	__u8 epoch_parity; /* of the key to write with */
	__u8 flags;
	__u8 id_bits; /* of the cookie, for the id; above them, what a load balancer put there */
	/* With SERVED_CHOICES: */
	__u16 acceptance; /* its index in the maps of acceptance.h */
	__u32 threshold; /* static: the load must be less; dynamic: the limit that it begins with */
	__u16 window; /* dynamic: attempts, at least 1 */
	__u16 low, high; /* dynamic: the limit rises when a window has fewer accepted than low, and falls when it has
			    more than high */
	__u8 policy; /* enum accept_policy */
	__u8 load; /* enum accept_load */
	__u8 session_scale; /* with SERVED_TAKES_OVER: of windows */
	__u8 withheld; /* a port where subflows join that new connections are not told: server/mptcp/withhold.h */
	__u8 predecessor_forward; /* how what is not of this server goes there: an enum forward, and 1; 0: not at all */
	__u8 pad;
	__be32 predecessor[4];
};
_Static_assert(sizeof(struct served) == 88, "served");

/* Some row has a predecessor. Else nobody looks. */
volatile __u32 predecessors_used;

struct interface {
	__u8 mac[6];
	__u8 pad[2];
};
_Static_assert(sizeof(struct interface) == 8, "interface");

/* How to reach another server, for second chances. */
struct stop {
	__u32 ifindex;
	__u8 destination_mac[6];
	__u8 source_mac[6];
	__be16 vlan; /* 802.1Q tag control, 0: untagged */
	__u16 pad;
};
_Static_assert(sizeof(struct stop) == 20, "stop");

struct { /* by ifindex */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct interface);
} interfaces SEC(".maps");

struct { /* this host's addresses: where tunnels may end */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __be32[4]);
	__type(value, __u32);
} own_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct served_key);
	__type(value, __u32);
} served_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8194);
	__type(key, __u32);
	__type(value, struct served);
} served_services SEC(".maps");

/* Rises after every change of served_rows: sockets keep their cookie until then. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} generation SEC(".maps");

struct { /* by address; IPv4 in the first word */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __be32[4]);
	__type(value, struct stop);
} stop_hops SEC(".maps");

/* The row of a port that is one of a range. 0: none. */
inline_always const __u32 *served_range(const struct served_key *key)
{
	struct served_key ranges = *key;
	const struct port_range *range;
	const __u32 *list;

	ranges.port = 0;
	list = bpf_map_lookup_elem(&served_rows, &ranges);
	range = list && *list & PORT_RANGES ? port_range_find(*list, key->port) : 0;
	return range ? &range->value : 0;
}

/* 0: not served by this host. */
inline_always const __u32 *served_row(const struct served_key *key)
{
	const __u32 *row = bpf_map_lookup_elem(&served_rows, key);

	return row || !key->port || !port_ranges_used ? row : served_range(key);
}

/* 0: not served by this host. */
inline_always const struct served *served_find(const struct served_key *key)
{
	const __u32 *row = served_row(key);

	return row ? bpf_map_lookup_elem(&served_services, row) : 0;
}
