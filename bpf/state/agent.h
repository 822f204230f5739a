/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* agent.h - the maps of the server role, in packet order, and every way out of its programs. */
#pragma once

/* User space reads the names from BTF: there is no second list. */
enum agent_verdict {
	AGENT_CONTINUE, /* not decided yet; never leaves a program */

	/* XDP: decapsulation. */
	PASSED_NOT_TUNNELLED,
	PASSED_FOREIGN_TUNNEL, /* not for this host, or not about a service of ours: the host may have tunnels itself */
	DECAPSULATED, /* steered here by the load balancer */
	DECAPSULATED_MINE, /* second chance: a connection of this server */
	DECAPSULATED_LAST, /* second chance: nobody further to ask */
	HANDED_ON, /* second chance: to the next stop */
	ACCEPTED_FIRST, /* dispatch choices: a SYN, by the first candidate; the last one always accepts */
	ACCEPTED_SECOND,
	ACCEPTED_THIRD,
	ACCEPTED_FOURTH,
	PASSED_ON_FIRST, /* dispatch choices: a SYN, by the first candidate to the next one */
	PASSED_ON_SECOND,
	PASSED_ON_THIRD,
	DROPPED_MALFORMED_TUNNEL,
	DROPPED_FOREIGN_SOURCE, /* a tunnel to a service of ours from somebody who is no load balancer of the fleet */
	DROPPED_STOP_UNREACHABLE,
	DROPPED_STOP_EXPIRED, /* has been handed on too often: the outer TTL or hop limit is used up */
	DROPPED_CONGESTED, /* RFC 6040: congestion was marked, and the inner packet cannot say so */

	/* tc ingress: TSecr. */
	INGRESS_NOT_SERVED,
	INGRESS_NO_TIMESTAMP,
	INGRESS_NO_ECHO,
	INGRESS_RESTORED_REQUEST,
	INGRESS_RESTORED_SYN_COOKIE,
	INGRESS_RESTORED,
	INGRESS_RESTORED_TIME_WAIT,
	INGRESS_TAKEN_OVER, /* session tls: a connection that a load balancer has begun */
	INGRESS_RESTORED_TRANSLATED, /* a connection that this host's address translation takes elsewhere */
	INGRESS_RESTORED_BELOW, /* at the device that this one is made on: left as it is */
	INGRESS_BAD_COOKIE, /* not written by us: left as it is */
	INGRESS_UNMARKED, /* a connection that is never rewritten */
	INGRESS_NO_SOCKET,
	INGRESS_TAKEN_OVER_UNMARKED, /* the same, without timestamps */
	INGRESS_NOT_TAKEN_OVER, /* the kernel refuses it: older than 6.9, or the listener speaks MPTCP */
	INGRESS_DROPPED_BEFORE, /* session tls: of a connection that this server does not have yet */
	INGRESS_MADE_WAY, /* session tls: a client uses a port again: the connection before was ended, and the packet comes again */
	INGRESS_DROPPED_STRAY, /* an empty ACK that no connection here explains, for the first time */

	/* tc egress: TSval. */
	EGRESS_NOT_SERVED,
	EGRESS_NO_TIMESTAMP,
	EGRESS_RESET_NO_TIMESTAMP,
	EGRESS_MARKED_SYN_ACK,
	EGRESS_MARKED_UNKNOWN_COLUMN, /* affinity history: as of the first column, as nothing tells which one it is of */
	EGRESS_MARKED,
	EGRESS_MARKED_HELD_BACK, /* the client was silent for long: the wire clock waits for it */
	EGRESS_MARKED_RENEWED, /* a probe of a keepalive, after its copy that renews the client's cookie */
	EGRESS_COPIED, /* that copy */
	EGRESS_MARKED_NO_SOCKET, /* TIME_WAIT, or an answer for a connection request */
	EGRESS_MARKED_TRANSLATED, /* the same */
	EGRESS_MARKED_ABOVE, /* at the device that is made on this one: left as it is */
	EGRESS_UNMARKED_OLDER_THAN_AGENT,
	EGRESS_UNMARKED_AUTHENTICATED, /* TCP-AO covers the options */
	EGRESS_UNMARKED_USEC, /* microsecond timestamps: no room for a cookie */

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
	__u16 acceptance; /* its place in the maps of acceptance.h */
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
