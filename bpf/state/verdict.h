/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* verdict.h - every way out of the load balancer's data path. User space reads the names from BTF. */
#pragma once

enum verdict {
	VERDICT_CONTINUE, /* not decided yet; never leaves the program */

	/* Handed to the host's stack. */
	PASSED_NOT_IP,
	PASSED_NO_SERVICE,
	PASSED_UNSUPPORTED, /* IP options, extension headers, protocols without ports */
	PASSED_PROBE, /* a server's answer to this node itself */

	/* Sent to a server: which rung of the ladder decided. */
	FORWARDED_NEW, /* dispatch policy */
	FORWARDED_BY_COOKIE,
	FORWARDED_BY_TABLE, /* affinity table: the entry that the cookie names is this connection's */
	FORWARDED_ADDED, /* affinity table: by the cookie, and from now on with an entry */
	FORWARDED_TABLE_FULL, /* affinity table: by the cookie; its partition has no room for an entry. replicated: the same, by the table */
	FORWARDED_BY_SCRUBBER, /* affinity table: to the scrubber, with the server as the next stop */
	FORWARDED_BY_LOCAL_TABLE,
	FORWARDED_BY_HISTORY, /* affinity history: the owner of the column that the timestamp names, or those before */
	FORWARDED_BY_OLDER_KEY, /* affinity quic: by a connection id that was made with another key than the one in use */
	FORWARDED_STARTING, /* affinity quic, session tls: to where its connection's first packet went; the client has not heard of the server yet */
	FORWARDED_BY_SESSION, /* session tls: the client resumes a TLS session of this server */
	FORWARDED_BY_PORT, /* mptcp: a subflow that joined at the port of its server */
	FORWARDED_BY_REPLICA, /* replicated: by an entry of this node, or the answer of another */
	FORWARDED_BY_CLOSING, /* RST without timestamp, found by the FIN or RST before it */
	FORWARDED_BY_HASH, /* affinity hash: every packet by the table */
	FORWARDED_UNKNOWN, /* fallback: affinity local-table, and it is not there */
	FORWARDED_NO_NODE, /* fallback: first tier, and no node of the second has taken the connection yet */
	FORWARDED_NO_TIMESTAMP, /* fallback: nothing to carry a cookie */
	FORWARDED_BAD_COOKIE, /* fallback: forged, stale or out of range; affinity quic: a connection id that names no server, or no QUIC */
	FORWARDED_NO_ECHO, /* fallback: TSecr is 0 */
	FORWARDED_RESET, /* fallback: RST without timestamp, not seen closing */
	FORWARDED_BAD_OPTIONS, /* fallback: TCP options that cannot be read */
	FORWARDED_STRIPPED, /* SYN to a server that cannot take part: its timestamp option was taken off */
	FORWARDED_FRAGMENT, /* follows its first fragment */
	FORWARDED_IN_FRAGMENTS, /* too big for the path to the server, and without Don't Fragment: it goes in several */
	FORWARDED_ICMP_BY_COOKIE, /* error from the path, cookie in the quoted packet, or the port */
	FORWARDED_ICMP_BY_FALLBACK,

	/* return: through */
	RETURNED,
	RETURNED_UNMARKED, /* without timestamp, or from a server that cannot take part */

	/* Sent to another load balancer, inside a message. */
	ASKED_PEER, /* whose connection it is */
	PASSED_ON_TO_PEER, /* a message of another one */

	/* Kept by this node, until it is forwarded. */
	HELD_HELLO, /* session tls: a segment of a ClientHello that is not all there */

	/* Answered by this node. */
	ANSWERED_ECHO,
	ANSWERED_TOO_BIG,
	ANSWERED_SYN, /* session tls */
	ANSWERED_HELLO, /* session tls: a segment of a ClientHello that comes again: the client may lack the leave to send the rest */
	ANSWERED_PEER, /* another load balancer asks whether this one is there */

	/* Dropped. */
	DROPPED_MALFORMED,
	DROPPED_OTHER_FUNCTION, /* a network function has sent it, and its connection is another one's */
	DROPPED_NO_SERVICE, /* to a VIP, for no service of it, or to what was one, and this host would forward it, most likely in a circle */
	DROPPED_IMPOSSIBLE_SOURCE, /* asks for an answer to an address that nobody has: multicast, loopback, our own ... (RFC 1122 3.2.1.3) */
	DROPPED_ANSWER_LIMIT, /* echo requests, and packets too big, beyond what this node answers */
	DROPPED_NO_SERVER,
	DROPPED_NO_NEXT_HOP,
	DROPPED_NO_CLOCK, /* return: through: the server's clock is not known yet, so its timestamp cannot be restored */
	DROPPED_UNKNOWN_FRAGMENT,
	DROPPED_FRAGMENT_LIMIT, /* too big for the path to the server, beyond what this node sends in fragments */
	DROPPED_HANDSHAKE, /* session tls: the client acknowledges our answer to its SYN, which changes nothing */
	DROPPED_HOLD_BUSY, /* session tls: another CPU has the place where a segment of a ClientHello would be held */
	DROPPED_CONGESTED, /* second tier: congestion was marked outside, and the inner packet cannot say so (RFC 6040) */
	DROPPED_FORGED, /* a message that no load balancer of the fleet has sent, or not to this one */
	DROPPED_OTHER_VIEW, /* a message of who knows another chain of the connection, or there is no ring any more */
	DROPPED_NO_MEMBER, /* a message from a node that is not in the chain of the connection, or to one */
	DROPPED_TOO_MANY_HOPS, /* a message that goes in circles */
	DROPPED_TABLE_FULL, /* replicated: there is no room for an entry, without which the answer would not come back */
	DROPPED_TABLE_BUSY, /* replicated: others put entries into the same places, or this one was just removed */
	DROPPED_OVER_LIMIT, /* affinity table: more packets of one connection than its service lets pass */
	DROPPED_NO_HEADROOM,
	DROPPED_TOO_BIG_QUIETLY, /* an ICMP error or fragment that does not fit: never answered (RFC 1122 3.2.2) */

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
