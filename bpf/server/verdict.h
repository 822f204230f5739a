/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* verdict.h - every exit of the server's programs, and its counters. */
#pragma once

#include "wire/kernel.h"

/* User space reads the names from BTF: there is no second list. */
enum agent_verdict {
	AGENT_CONTINUE, /* not decided yet; never leaves a program */

	/* XDP: decapsulation. */
	PASSED_NOT_TUNNELLED, /* not in a tunnel */
	PASSED_FOREIGN_TUNNEL, /* a tunnel that is not for this host, or for no service: to the host. Worry: it grows
				  with the load: this host is not in its own file, or the VIP differs */
	DECAPSULATED, /* from a load balancer, for this server. Worry: it stops growing */
	DECAPSULATED_MINE, /* second chance: a connection of this server */
	DECAPSULATED_LAST, /* second chance: this server is the last stop. Worry: it grows long after a change of
			      servers */
	HANDED_ON, /* second chance: sent to the next stop. Worry: it grows long after a change of servers */
	HANDED_TO_PREDECESSOR, /* predecessor: a connection that is not of this server. Worry: it grows after clients of
				  the predecessor have left */
	ACCEPTED_FIRST, /* dispatch choices: a SYN taken by this server, as the first candidate */
	ACCEPTED_SECOND, /* dispatch choices: a new connection, taken as the second candidate */
	ACCEPTED_THIRD, /* dispatch choices: a new connection, taken as the third candidate */
	ACCEPTED_FOURTH, /* dispatch choices: a new connection, taken as the fourth candidate */
	PASSED_ON_FIRST, /* dispatch choices: a SYN passed on to the second candidate. Worry: nearly all, on every
			    server: nobody listens, or all are overloaded */
	PASSED_ON_SECOND, /* dispatch choices: a new connection, passed on as the second candidate */
	PASSED_ON_THIRD, /* dispatch choices: a new connection, passed on as the third candidate */
	DROPPED_MALFORMED_TUNNEL, /* a tunnel packet that contradicts itself. Worry: any */
	DROPPED_FOREIGN_SOURCE, /* a tunnel from an address of no load balancer. Worry: any: an attack, or a load
				   balancer that is not connected or missing in tunnels_from; ballast ctl status names
				   the last one */
	DROPPED_STOP_UNREACHABLE, /* no route or neighbour to any remaining stop. Worry: any: servers must reach each
				     other */
	DROPPED_STOP_EXPIRED, /* handed on until the TTL ended. Worry: any: stops, or routes of a predecessor, loop */
	DROPPED_CONGESTED, /* congestion was marked on the path and the inner packet cannot say so (RFC 6040) */

	/* tc ingress: TSecr. */
	INGRESS_NOT_SERVED, /* for no service */
	INGRESS_NO_TIMESTAMP, /* from a client without timestamps */
	INGRESS_NO_ECHO, /* a SYN: nothing to restore. Worry: it grows faster than egress_marked_syn_ack: clients get no
			    answer */
	INGRESS_RESTORED_REQUEST, /* end of a handshake, TSecr restored */
	INGRESS_RESTORED_SYN_COOKIE, /* end of a handshake that the kernel answered with a SYN cookie. Worry: it grows:
					the accept queue is full, or a flood */
	INGRESS_RESTORED, /* a connection's packet, TSecr restored: the normal case. Worry: it stops growing */
	INGRESS_RESTORED_TIME_WAIT, /* a packet for a socket in TIME_WAIT, TSecr restored */
	INGRESS_TAKEN_OVER, /* session tls: the first packet with data of a connection that a load balancer accepted.
			       Worry: it stops growing */
	INGRESS_RESTORED_TRANSLATED, /* a packet of a connection that the host translates (NAT), TSecr restored */
	INGRESS_RESTORED_BELOW, /* already restored at the lower device (VLAN, bridge, bond, macvlan) */
	INGRESS_BAD_COOKIE, /* a cookie that this server did not write: unchanged. Worry: it grows: as
			       forwarded_bad_cookie */
	INGRESS_UNMARKED, /* a connection that is never rewritten, for example one older than the agent */
	INGRESS_NO_SOCKET, /* no socket: the host answers with RST. Worry: it grows after a change of servers */
	INGRESS_TAKEN_OVER_UNMARKED, /* session tls: the same as ingress_taken_over, without timestamps */
	INGRESS_NOT_TAKEN_OVER, /* session: tls: the kernel refuses it; dropped. Worry: any: ballast ctl status says why
				 */
	INGRESS_DROPPED_BEFORE, /* session tls: of a connection that this server does not have yet; the client sends it
				   again. Worry: it grows with the load: clocks or keys differ */
	INGRESS_MADE_WAY, /* session tls: the client reuses a port: the old connection, or its TIME_WAIT, is ended and
			     the packet handled again */
	INGRESS_DROPPED_STRAY, /* an empty ACK of no connection, without an echo of this server: ignored once. Worry: it
				  grows without a SYNPROXY in front: as forwarded_bad_cookie */

	/* tc egress: TSval. */
	EGRESS_NOT_SERVED, /* for no service */
	EGRESS_NO_TIMESTAMP, /* the connection has no timestamps */
	EGRESS_RESET_NO_TIMESTAMP, /* an RST, which has no timestamp */
	EGRESS_RESET_TAKEN_OVER, /* session: tls: the kernel resets a connection that it took over within the last 100
				    ms. Worry: any: ballast ctl status says why */
	EGRESS_MARKED_SYN_ACK, /* a SYN-ACK with a cookie. Worry: it stops growing */
	EGRESS_MARKED_UNKNOWN_COLUMN, /* affinity history: a packet of a new connection whose candidate is not known;
					 marked as of the first. Worry: it grows */
	EGRESS_MARKED, /* a packet with a cookie: the normal case. Worry: it stops growing */
	EGRESS_MARKED_HELD_BACK, /* a packet with a cookie after a silence, with the wire clock held back */
	EGRESS_MARKED_RENEWED, /* a keepalive probe, sent after the copy that renews the client's cookie */
	EGRESS_COPIED, /* the copy of a keepalive probe that renews the cookie */
	EGRESS_MARKED_NO_SOCKET, /* a packet with a cookie, of TIME_WAIT or of a connection request */
	EGRESS_MARKED_TRANSLATED, /* packet with a cookie, of a connection that the host translates (NAT) */
	EGRESS_MARKED_ABOVE, /* already marked at the upper device */
	EGRESS_UNMARKED_OLDER_THAN_AGENT, /* a connection that is older than the agent. Worry: it grows for new
					     connections */
	EGRESS_UNMARKED_AUTHENTICATED, /* TCP-AO signs the options: no cookie possible. Worry: any: such services need
					  affinity hash */
	EGRESS_UNMARKED_USEC, /* a route with tcp_usec_ts: no room for a cookie. Worry: any: change the route */
	EGRESS_DROPPED_PROBE, /* because of a SYN by which the agent finds out whether packets are taken; it does not
				 leave */

	AGENT_VERDICTS,
};
const enum agent_verdict *agent_verdict_names __attribute__((unused)); /* keeps the enum in BTF */

struct agent_traffic {
	__u64 packets, bytes;
};

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
