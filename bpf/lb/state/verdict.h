/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* verdict.h - every way out of the load balancer's data path. User space reads the names from BTF. */
#pragma once

#include "wire/kernel.h"

enum verdict {
	VERDICT_CONTINUE, /* not decided yet; never leaves the program */

	/* Handed to the host's stack. */
	PASSED_NOT_IP, /* not IP (ARP, LLDP), or not to this host's MAC address: to the host */
	PASSED_NO_SERVICE, /* for no service: to the host. Worry: it grows with the clients' load */
	PASSED_UNSUPPORTED, /* IP options, extension headers, protocols without ports: to the host. Worry: it is not
			       noise */
	PASSED_PROBE, /* a server's answer to this node: to the host */

	/* Sent to a server: which rung of the ladder decided. */
	FORWARDED_NEW, /* a new connection, to the server that the dispatch policy chose. Worry: SYN floods */
	FORWARDED_BY_COOKIE, /* by the cookie, which names the server: the normal case. Worry: it stops growing */
	FORWARDED_BY_TABLE, /* affinity table: by the cookie, whose entry is this connection's: the normal case. Worry:
			       it stops growing */
	FORWARDED_ADDED, /* affinity table: by the cookie, from now on with an entry. Worry: it stays as large as
		forwarded_by_table: agents do not write the index */
	FORWARDED_TABLE_FULL, /* no room for an entry. affinity table: by the cookie; replicated: by the hash. Worry: it
		grows: raise table.entries; docs/features/replicas.md, "Larger tables" */
	FORWARDED_BY_SCRUBBER, /* affinity table: a suspect's packet, sent to the scrubber first */
	FORWARDED_BY_LOCAL_TABLE, /* affinity local-table: this node remembers the connection */
	FORWARDED_BY_HISTORY, /* affinity history: to the owner of the column that the timestamp names, or one before it
			       */
	FORWARDED_BY_OLDER_KEY, /* affinity quic: by a connection id of a key that is not in use yet or any more. Worry:
		it grows: connections have ids of that key, so do not drop it. Random datagrams count too: up to
		forwarded_bad_cookie x servers / (8 x 256^quic.server_id_length) may be these alone */
	FORWARDED_STARTING, /* affinity quic, session tls, syn_proxy: to the server of the connection's first packet;
		the client has no packet of the server yet */
	FORWARDED_BY_SESSION, /* session tls: a ClientHello that resumes a session of this server. Worry: it is low
		beside forwarded_new: see ballast ctl session list. Many unknown: applications do not use the agent's
		ticket file (docs/features/sessions.md) */
	FORWARDED_BY_PORT, /* mptcp: a subflow, by the port that names its server */
	FORWARDED_BY_REPLICA, /* replicated: by an entry of this load balancer, or the answer of another. Worry: it
				 stops growing */
	FORWARDED_BY_CLOSING, /* RST without timestamp, found by the FIN or RST before it */
	FORWARDED_BY_HASH, /* affinity hash: by the hash of the connection */
	FORWARDED_UNKNOWN, /* fallback: affinity local-table, and no entry. Worry: it grows: raise --max-local; expected
		after a change of load balancers */
	FORWARDED_NO_NODE, /* fallback of the first tier: no node of the second tier has the connection yet. Worry: it
		grows faster than forwarded_new */
	FORWARDED_NO_TIMESTAMP, /* fallback: the packet cannot carry a cookie. Worry: it is most of the traffic: clients
		or a middlebox without timestamps */
	FORWARDED_BAD_COOKIE, /* fallback: a forged or stale cookie, or one out of range; affinity quic: an id of no
		server. Worry: it grows: keys or ids differ between nodes, or an agent does not mark */
	FORWARDED_NO_ECHO, /* fallback: TSecr is 0 */
	FORWARDED_RESET, /* fallback: RST without timestamp, nothing remembered */
	FORWARDED_BAD_OPTIONS, /* fallback: TCP options that cannot be read. Worry: it grows */
	FORWARDED_STRIPPED, /* return: through: a SYN without its timestamp, as the server cannot take part. Worry: any:
		set tcp_timestamps=2 on the server */
	FORWARDED_TO_PREDECESSOR, /* predecessor: of a connection that did not begin here, or shall not: share. Worry:
		it grows after share is 1000, or stays when clients have left: docs/run/moving.md */
	FORWARDED_FRAGMENT, /* a later fragment, to the server of the first. Worry: it is large: MTU */
	FORWARDED_IN_FRAGMENTS, /* too big for the path to the server, without Don't Fragment: sent in fragments; a
		later failure (memory, device) is not counted. Worry: it is large: MTU */
	FORWARDED_ICMP_BY_COOKIE, /* ICMP error from the path, by the cookie in the packet that it quotes */
	FORWARDED_ICMP_BY_FALLBACK, /* ICMP error from the path, by the fallback */

	/* return: through */
	RETURNED, /* return: through: an answer, marked and routed to the client. Worry: it stops growing */
	RETURNED_UNMARKED, /* return: through: an answer without a mark: no timestamp, or the server cannot take part.
		Worry: as for forwarded_stripped */

	/* Sent to another load balancer, inside a message. */
	ASKED_PEER, /* replicated: sent to another load balancer, inside a question */
	PASSED_ON_TO_PEER, /* replicated: a question or an answer of other load balancers, forwarded */

	/* Kept by this node, until it is forwarded. */
	HELD_HELLO, /* session tls: a segment of an incomplete ClientHello, held; counted again when forwarded */

	/* Answered by this node. */
	ANSWERED_ECHO, /* ping of a VIP */
	ANSWERED_TOO_BIG, /* the packet does not fit the path to the server: ICMP to the client. Worry: it keeps
			     growing: MTU */
	ANSWERED_SYN, /* session tls, syn_proxy: a SYN, answered without state */
	ANSWERED_HELLO, /* session tls: a repeated segment of an incomplete ClientHello: acknowledged. Worry: it grows
		with the load: packets are lost */
	ANSWERED_UNSERVED, /* unserved: reject: for no service of a VIP, refused by a RST or ICMP. Worry: it grows with
		the clients' load: a wrong port; or a scan */
	ANSWERED_PEER, /* another load balancer asks whether this one is alive. Worry: it stops growing, and there is a
			  ring */

	/* Dropped. */
	DROPPED_MALFORMED, /* headers that contradict themselves. Worry: it grows */
	DROPPED_OTHER_FUNCTION, /* a packet of a network function whose connection is another function's. Worry: any:
		two functions translate to the same address and port */
	DROPPED_NO_SERVICE, /* to a VIP, or a former one whose route leads back, for no service; this host is a router,
		so the packet would loop. Worry: it grows with the clients' load */
	DROPPED_IMPOSSIBLE_SOURCE, /* an echo request, a packet too big or to refuse, from multicast, loopback or a VIP.
		Worry: it grows: forged packets reach the network */
	DROPPED_ANSWER_LIMIT, /* an echo request, a packet too big or to refuse, beyond 1000 answers a second, CPU and
		kind. Worry: it grows with the clients' load: raise the fabric's MTU; or a flood */
	DROPPED_NO_SERVER, /* the service has no server for it. Worry: all are draining, removed or of weight 0 */
	DROPPED_NO_NEXT_HOP, /* no route or neighbour for the server. Worry: any */
	DROPPED_PREDECESSOR_LOOP, /* predecessor: it came from there, or went around too often. Worry: any: the
		predecessor does not take the VIP, or its routes lead here */
	DROPPED_NO_CLOCK, /* return: through: the server's clock is not known yet. Worry: it goes on for seconds: the
		node cannot connect to the server */
	DROPPED_UNKNOWN_FRAGMENT, /* a later fragment without its first one. Worry: it grows: ECMP sends fragments to
				     other nodes */
	DROPPED_FRAGMENT_LIMIT, /* as forwarded_in_fragments, beyond 50,000 a second and CPU. Worry: it grows: raise the
		fabric's MTU; or a flood */
	DROPPED_HANDSHAKE, /* session tls: a client's acknowledgement of the SYN-ACK, which changes nothing */
	DROPPED_HOLD_BUSY, /* session tls: another CPU used the slot for a segment of a ClientHello; the client sends it
		again. Worry: it grows: a flood of incomplete ClientHellos */
	DROPPED_CONGESTED, /* second tier: congestion was marked on the path and the inner packet cannot say so (RFC
			      6040) */
	DROPPED_FORGED, /* a message that no load balancer of the fleet has sent, or a damaged one. Worry: it continues:
		an attack (one datagram to UDP port 6080); different keys; a shared --peer-address; or numbers that have
		just changed */
	DROPPED_OTHER_VIEW, /* replicated: a question of a load balancer that knows a newer chain, or a packet that must
		be asked about while this node changes its ring or is not in it yet. Worry: it goes on for seconds:
		ballast ctl replica list */
	DROPPED_NO_MEMBER, /* replicated: an entry from or for a load balancer that is not in the chain. Worry: it goes
		on for seconds: ballast ctl replica list */
	DROPPED_TOO_MANY_HOPS, /* replicated: a message that loops. Worry: any */
	DROPPED_TABLE_FULL, /* a packet of a network function whose connection has no room in the table. Worry: it
		grows: docs/features/replicas.md, "Larger tables" */
	DROPPED_TABLE_BUSY, /* replicated: many packets for the same slot at once. Worry: it grows */
	DROPPED_NOT_ALLOWED, /* without a valid cookie, from an address that the service does not allow. Worry: it is
				not an attack */
	DROPPED_SOURCE_LIMIT, /* a new connection of a source that begins more than source_limit lets. Worry: it is
				 not an attack: many clients behind one address */
	DROPPED_OVER_LIMIT, /* affinity table: more packets of one connection than table.packet_limit. Worry: it is not
			       an attack */
	DROPPED_NO_HEADROOM, /* the driver leaves no room for encapsulation, or an answer. Worry: any: --xdp-mode
		generic, or another driver */
	DROPPED_TOO_BIG_QUIETLY, /* an ICMP error or IPv6 fragment that does not fit; never answered (RFC 1122). Worry:
				    it grows: MTU */

	VERDICTS,
};

/* Goes to a server. */
inline_always _Bool is_forwarded(enum verdict verdict)
{
	return verdict >= FORWARDED_NEW && verdict < RETURNED;
}

inline_always _Bool is_dropped(enum verdict verdict)
{
	return verdict >= DROPPED_MALFORMED;
}
