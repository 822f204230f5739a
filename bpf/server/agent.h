/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* agent.h - the maps of the server role, in packet order, and every way out of its programs. */
#pragma once

#include "wire/kernel.h"
#include "wire/siphash.h"

/* User space reads the names from BTF: there is no second list. */
enum agent_verdict {
	AGENT_CONTINUE, /* not decided yet; never leaves a program */

	/* XDP: decapsulation. */
	PASSED_NOT_TUNNELLED, /* not in a tunnel */
	PASSED_FOREIGN_TUNNEL, /* a tunnel that is not for this host, or for no service: to the host. Worry: it grows with the load: this host is not in its own file, or the VIP differs */
	DECAPSULATED, /* from a load balancer, for this server. Worry: it stops growing */
	DECAPSULATED_MINE, /* second chance: a connection of this server */
	DECAPSULATED_LAST, /* second chance: this server is the last stop. Worry: it grows long after a change of servers */
	HANDED_ON, /* second chance: sent to the next stop. Worry: it grows long after a change of servers */
	ACCEPTED_FIRST, /* dispatch choices: a SYN taken by this server, as the first candidate */
	ACCEPTED_SECOND, /* dispatch choices: a new connection, taken as the second candidate */
	ACCEPTED_THIRD, /* dispatch choices: a new connection, taken as the third candidate */
	ACCEPTED_FOURTH, /* dispatch choices: a new connection, taken as the fourth candidate */
	PASSED_ON_FIRST, /* dispatch choices: a SYN passed on to the second candidate. Worry: nearly all, on every server: nobody listens, or all are overloaded */
	PASSED_ON_SECOND, /* dispatch choices: a new connection, passed on as the second candidate */
	PASSED_ON_THIRD, /* dispatch choices: a new connection, passed on as the third candidate */
	DROPPED_MALFORMED_TUNNEL, /* a tunnel packet that contradicts itself. Worry: any */
	DROPPED_FOREIGN_SOURCE, /* a tunnel from an address of no load balancer. Worry: any: an attack, or a load balancer that is not connected or missing in tunnels_from; ballast ctl status names the last one */
	DROPPED_STOP_UNREACHABLE, /* no route or neighbour to any remaining stop. Worry: any: servers must reach each other */
	DROPPED_STOP_EXPIRED, /* handed on until the outer TTL ended. Worry: any: the stops loop */
	DROPPED_CONGESTED, /* congestion was marked on the path and the inner packet cannot say so (RFC 6040) */

	/* tc ingress: TSecr. */
	INGRESS_NOT_SERVED, /* for no service */
	INGRESS_NO_TIMESTAMP, /* from a client without timestamps */
	INGRESS_NO_ECHO, /* a SYN: nothing to restore. Worry: it grows faster than egress_marked_syn_ack: clients get no answer */
	INGRESS_RESTORED_REQUEST, /* end of a handshake, TSecr restored */
	INGRESS_RESTORED_SYN_COOKIE, /* end of a handshake that the kernel answered with a SYN cookie. Worry: it grows: the accept queue is full, or a flood */
	INGRESS_RESTORED, /* a connection's packet, TSecr restored: the normal case. Worry: it stops growing */
	INGRESS_RESTORED_TIME_WAIT, /* a packet for a socket in TIME_WAIT, TSecr restored */
	INGRESS_TAKEN_OVER, /* session tls: the first packet with data of a connection that a load balancer accepted. Worry: it stops growing */
	INGRESS_RESTORED_TRANSLATED, /* a packet of a connection that the host translates (NAT), TSecr restored */
	INGRESS_RESTORED_BELOW, /* already restored at the lower device (VLAN, bridge, bond, macvlan) */
	INGRESS_BAD_COOKIE, /* a cookie that this server did not write: unchanged. Worry: it grows: as forwarded_bad_cookie */
	INGRESS_UNMARKED, /* a connection that is never rewritten, for example one older than the agent */
	INGRESS_NO_SOCKET, /* no socket: the host answers with RST. Worry: it grows after a change of servers */
	INGRESS_TAKEN_OVER_UNMARKED, /* session tls: the same as ingress_taken_over, without timestamps */
	INGRESS_NOT_TAKEN_OVER, /* session: tls: the kernel refuses it; dropped. Worry: any: ballast ctl status says why */
	INGRESS_DROPPED_BEFORE, /* session tls: of a connection that this server does not have yet; the client sends it again. Worry: it grows with the load: clocks or keys differ */
	INGRESS_MADE_WAY, /* session tls: the client reuses a port: the old connection, or its TIME_WAIT, is ended and the packet handled again */
	INGRESS_DROPPED_STRAY, /* an empty ACK of no connection, without an echo of this server: ignored once. Worry: it grows without a SYNPROXY in front: as forwarded_bad_cookie */

	/* tc egress: TSval. */
	EGRESS_NOT_SERVED, /* for no service */
	EGRESS_NO_TIMESTAMP, /* the connection has no timestamps */
	EGRESS_RESET_NO_TIMESTAMP, /* an RST, which has no timestamp */
	EGRESS_RESET_TAKEN_OVER, /* session: tls: the kernel resets a connection that it took over within the last 100 ms. Worry: any: ballast ctl status says why */
	EGRESS_MARKED_SYN_ACK, /* a SYN-ACK with a cookie. Worry: it stops growing */
	EGRESS_MARKED_UNKNOWN_COLUMN, /* affinity history: a packet of a new connection whose candidate is not known; marked as of the first. Worry: it grows */
	EGRESS_MARKED, /* a packet with a cookie: the normal case. Worry: it stops growing */
	EGRESS_MARKED_HELD_BACK, /* a packet with a cookie after a silence, with the wire clock held back */
	EGRESS_MARKED_RENEWED, /* a keepalive probe of the server, sent after the copy that renews the client's cookie */
	EGRESS_COPIED, /* the copy of a keepalive probe that renews the cookie */
	EGRESS_MARKED_NO_SOCKET, /* a packet with a cookie, of TIME_WAIT or of a connection request */
	EGRESS_MARKED_TRANSLATED, /* packet with a cookie, of a connection that the host translates (NAT) */
	EGRESS_MARKED_ABOVE, /* already marked at the upper device */
	EGRESS_UNMARKED_OLDER_THAN_AGENT, /* a connection that is older than the agent. Worry: it grows for new connections */
	EGRESS_UNMARKED_AUTHENTICATED, /* TCP-AO signs the options: no cookie possible. Worry: any: such services need affinity hash */
	EGRESS_UNMARKED_USEC, /* a route with tcp_usec_ts: no room for a cookie. Worry: any: change the route */

	AGENT_VERDICTS,
};
const enum agent_verdict *agent_verdict_names __attribute__((unused)); /* keeps the enum in BTF */

/* A service as this server sees it. Same layout as the load balancer's vip_key. */
struct served_key {
	__be32 address[4];
	__be16 port; /* 0 with protocol 0: the address itself, for what has no port */
	__u8 protocol;
	__u8 ipv6;
};
_Static_assert(sizeof(struct served_key) == 20, "served_key");

enum served_flag {
	SERVED_COOKIE = 1, /* timestamps are marked */
	SERVED_RETIRED = 2, /* no longer marks: only for the connections that carry its cookie */
	SERVED_CHOICES = 4, /* SYNs with stops may be passed on */
	SERVED_HISTORY = 8, /* with the column that the connection was accepted in, and nothing else: cookie_bits is HISTORY_BITS */
	SERVED_TAKES_OVER = 32, /* connections may have been begun by load balancers */
	SERVED_SESSION = 64, /* they are: also what has no timestamps is looked at */
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
	__u16 low, high; /* dynamic: the limit rises when a window has fewer accepted than low, and falls when it has more than high */
	__u8 policy; /* enum accept_policy */
	__u8 load; /* enum accept_load */
	__u8 session_scale; /* with SERVED_TAKES_OVER: of windows */
	__u8 pad[3];
};
_Static_assert(sizeof(struct served) == 72, "served");

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

struct agent_traffic {
	__u64 packets, bytes;
};

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

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, AGENT_VERDICTS);
	__type(key, __u32);
	__type(value, struct agent_traffic);
} agent_counters SEC(".maps");

inline_always void agent_count(enum agent_verdict verdict, __u32 bytes)
{
	__u32 index = verdict;
	struct agent_traffic *count = bpf_map_lookup_elem(&agent_counters, &index);

	if (count) {
		count->packets++;
		count->bytes += bytes;
	}
}

/* 0: not served by this host. */
inline_always const struct served *served_find(const struct served_key *key)
{
	const __u32 *row = bpf_map_lookup_elem(&served_rows, key);

	return row ? bpf_map_lookup_elem(&served_services, row) : 0;
}
