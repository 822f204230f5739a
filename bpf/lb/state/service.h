/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* service.h - services, their servers, and the tables that choose among them.
 *
 * One rule makes every change atomic for packets: a record of more than one word is immutable once published;
 * what changes is the one u32 that names it. User space writes a new row, then flips the u32, and reuses the old row
 * only after every program that could have seen it has ended.
 *
 *   vips: address, port, protocol -> service number      service_rows: number -> row of services
 * Further VIPs of a service have numbers and rows of their own, which differ in their keys.
 *   services[row]:  ids -> server_rows -> servers        AllServers of Cheetah III-A: also draining and removed servers
 *                   rounds, slots                        VIPToServers: only who may get new connections
 */
#pragma once

#include "wire/kernel.h"
#include "wire/siphash.h"

enum service_flag {
	SERVICE_THROUGH = 1, /* answers pass this node, which writes the cookie */
	SERVICE_SECOND_CHANCE = 2, /* servers run agents that hand on what is not theirs */
	SERVICE_FIRST_TIER = 4, /* its servers are the load balancers of the second tier */
	SERVICE_REPLICATED = 8, /* other load balancers are asked about what carries nothing */
	SERVICE_SESSION = 32, /* connections begin at this node: lb/walk/session.h */
	SERVICE_FUNCTIONS = 16, /* its servers are network functions: lb/state/functions.h */
	SERVICE_GUARDED = 128, /* not everybody may begin connections: lb/ladder/guarded.h */
	SERVICE_REPORTED_LOADS = 64, /* p2c and least compare loads that user space writes: lb/state/loads.h */
};

enum server_flag {
	SERVER_NO_COOKIE = 1, /* return: through and its clock is per connection: timestamps are taken off its SYNs */
	SERVER_NEXT_HOP = 2, /* the next hop is known */
	SERVER_IPV6 = 4, /* its address, and so the outer header, is IPv6 */
	SERVER_DOWN = 8, /* session tls: it is not healthy, or removed: its sessions begin again elsewhere */
	SERVER_PREDECESSOR = 16, /* what was there before: lb/ladder/predecessor.h */
	SERVER_ON_LINK = 32, /* a predecessor's: the next hop is itself, and not a router */
};
#define SERVER_FORWARD_SHIFT 8 /* predecessors: an enum forward of their own */

#define HISTORY_MAX 4 /* owners of a column */
#define CANDIDATES_MAX 4 /* columns of a slot */
#define NO_ID 0
#define PREDECESSORS_MAX 8
#define SERVICE_NUMBERS 4097 /* 0 is none */

struct service {
	struct siphash_state cookie_hash[2]; /* of the keys, by parity of the epoch */
	struct siphash_state placement_hash;
	struct siphash_key placement_key;
	__be32 vip[4]; /* nat: the source of what goes back */
	__u32 number; /* stable while the service lives; indexes service_rows and the counters */
	__u32 ids_base, ids_count; /* range of server_rows */
	__u32 rounds_base, rounds_count; /* range of rounds */
	__u32 slots_base, slots_count; /* range of slots: slots_count times columns */
	__u8 dispatch, affinity, forward; /* wire/choices.h */
	__u8 flags;
	__u8 cookie_bits;
	__u8 epoch_parity; /* of the key that return: through writes with */
	__u8 columns; /* of a slot: 1, or choices' candidates */
	__u8 classes; /* awfd, lcf: of weights above 0 */
	__be16 port; /* nat with ports of the servers' own: the one port of the service; network functions: the length
			of their prefix */
	__u16 members; /* awfd, lcf: servers that may get new connections */
	__u32 table_base, table_blocks; /* table: range of connection_blocks */
	__u8 id_bits, id_shift; /* where in the cookie the id is */
	__u8 index_bits; /* table: between node and id */
	__u8 quic_config; /* quic: that ids are made by now */
	__u16 node; /* table: what this node writes into the cookie's first bits; 0: there is one tier */
	__u16 scrubber; /* table: id of the server that suspects' packets visit first, 0: none */
	__u16 packet_limit; /* table: of one connection, in a window; 0: none */
	__u16 id_mask[2]; /* of the id's bits, when shifted; by parity of the epoch, 0: there is no such key */
	__u16 id_turns; /* least: turns at the end of the range, one for each id */
	__u32 row; /* its own index */
	__u32 quic_base; /* quic: its range of quic_configs */
	__u32 session; /* its session_config, 0: none; session tls, or syn_proxy, which may be off now */
	__u32 allow; /* its list of allowed_sources */
	__be32 placed_ipv6[4]; /* which bits of a flow place it: all, or some of its source's address */
	__be32 placed_ipv4;
	__u16 placed_ports;
	__u16 syn_proxy; /* not 0: this node answers SYNs now, whatever the first data is: lb/walk/proxied.h */
	__u32 vip_number; /* of its VIP, of several: tells their connections apart */
	__u32 source_step, source_depth; /* source_limits.h: of a connection, of all but one of a burst; 0: none */
	__u8 source_ipv4, source_ipv6; /* bits of a source */
	__u8 predecessors; /* how many: what is not ours goes there */
	__u8 pad;
	__u32 predecessors_base; /* their range of server_rows */
	__u16 share; /* with predecessors: per mille of new connections that begin here */
	__u8 pad2[2]; /* to a power of two: a row's offset is a shift */
};
_Static_assert(sizeof(struct service) == 256, "service");

struct server {
	__be32 address[4]; /* where encapsulated packets go; nat: the new destination */
	__be32 source[4]; /* outer source address */
	__u8 destination_mac[6];
	__u8 source_mac[6];
	__u32 ifindex; /* 0: the server is this host */
	__u32 counter; /* index of server_counters, server_loads and clocks */
	__u16 mtu; /* of the path to the server, outer header included */
	__be16 vlan; /* 802.1Q tag control, 0: untagged */
	__be16 port; /* nat: new destination port, 0: as it is */
	__u16 flags;
	/* What packets to it carry, so that an error about one is believed that quotes it. IPv6: what flow labels are
	 * made of. IPv4: the identification as on the wire, and above it the sum (RFC 1071) of those words of the outer
	 * header that are the same in every packet to this server. */
	__u32 path;
};
_Static_assert(sizeof(struct server) == 64, "server");

/* The table that places new connections and what carries no cookie has slots of one column, or as many as a new
 * connection has candidates (SHELL III-B). A column has its owner, then the last distinct owners before. */
struct column {
	__u16 owners[HISTORY_MAX];
};
_Static_assert(sizeof(struct column) == 8, "column");

/* max_entries of the larger maps are set by user space at load time (daemon limits). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SERVICE_NUMBERS);
	__type(key, __u32);
	__type(value, __u32);
} service_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * SERVICE_NUMBERS);
	__type(key, __u32);
	__type(value, struct service);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1048576);
	__type(key, __u32);
	__type(value, __u32);
} server_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 131072);
	__type(key, __u32);
	__type(value, struct server);
} servers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4194304);
	__type(key, __u32);
	__type(value, struct column);
} slots SEC(".maps");

inline_always _Bool is_vip6(const struct service *service, const __u64 address[2])
{
	const __u64 *vip = (const void *)service->vip;

	return vip[0] == address[0] && vip[1] == address[1];
}

inline_always const struct service *service_by_number(__u32 number)
{
	const __u32 *row = bpf_map_lookup_elem(&service_rows, &number);

	return row && *row ? bpf_map_lookup_elem(&services, row) : 0;
}

/* May one of us have answered the SYN of a connection? */
inline_always _Bool begins_connections(const struct service *service)
{
	return service->session;
}

/* Does this node answer all its SYNs now? */
inline_always _Bool answers_syns(const struct service *service)
{
	return service->flags & SERVICE_SESSION || service->syn_proxy;
}

/* Cheetah's AllServers. 0: no server has this id. */
inline_always const struct server *server_by_id(const struct service *service, __u32 id)
{
	__u32 index = service->ids_base + id;
	const __u32 *row;

	if (id == NO_ID || id >= service->ids_count)
		return 0;
	row = bpf_map_lookup_elem(&server_rows, &index);
	return row && *row ? bpf_map_lookup_elem(&servers, row) : 0;
}
