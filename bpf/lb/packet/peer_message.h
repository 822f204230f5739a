/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* peer_message.h - what load balancers say to each other about the server of a connection, with the packet that asks
 * for it inside: Anolis 4.3.1 in the private data of GUE (docs/design/connection.md). Forged ones are recognised by a
 * MAC of the message, its connection and its receiver. */
#pragma once

#include "wire/kernel.h"
#include "wire/gue.h"
#include "wire/parse.h"
#include "wire/siphash.h"

#define GUE_PRIVATE_PEER 2 /* our private data */

enum peer_kind {
	PEER_WHO_OWNS = 1, /* forwarder to tail */
	PEER_WRITE, /* WriteIfNotExists: down the chain, from the head */
	PEER_OWNS, /* tail to forwarder */
	PEER_PING, /* no packet inside; answered by PEER_PONG to the port that it came from */
	PEER_PONG, /* owner and proposed: the version of the ring that its sender goes by, 0: none */
};

enum peer_flag {
	PEER_PARITY = 1, /* of the epoch of the key that the MAC is made with */
	PEER_NEW = 2, /* an entry was made for this packet */
	PEER_LOOKUP = 4, /* makes no entry: owner 0 if there is none */
	PEER_OUTBOUND = 8, /* the packet is from a network function: its connection is seen the other way round */
	PEER_KNOWN = 16, /* owner is whose it is, and not proposed */
	PEER_RECORDED = 32, /* proposed is whose it is, by the forwarder's own record */
};

struct peer_message {
	__u8 type; /* GUE_PRIVATE_PEER */
	__u8 kind, flags;
	__u8 hops; /* how often it, or what led to it, was sent */
	__be16 forwarder; /* node that has the packet's answer to come */
	__be16 last; /* of PEER_WRITE: node of the chain that sent it, 0: nobody */
	__be16 owner, proposed; /* ids of servers */
	__be32 chain; /* version since which the connection's chain is what it is, as the sender knows it */
	__u64 mac; /* as a little-endian number */
};
_Static_assert(sizeof(struct peer_message) == 24, "peer_message");

/* UDP, GUE and the message: what stands between the outer IP header and the packet. */
#define PEER_HEADERS (sizeof(struct udphdr) + sizeof(struct gue_header) + sizeof(struct peer_message))

/* The key of a connection in the tables of replicas: SipHash-1-3 over addresses, ports and protocol, the client's
 * first. Never 0 or 1, which mean something there. That two of ten million connections have the same happens once in
 * 300,000 such tables; who does not know the key cannot bring it about. */
inline_always __u64 peer_key(const struct siphash_state *begun, const struct packet *p)
{
	struct siphash_state s = { begun->v0, begun->v1, begun->v2, begun->v3 };
	__u64 ports = p->source_port | (__u64)p->destination_port << 16 | (__u64)p->protocol << 32, key;

	if (p->ipv6) {
		siphash_first_word(&s, p->source[0] | (__u64)p->source[1] << 32);
		siphash_word(&s, p->source[2] | (__u64)p->source[3] << 32);
		siphash_word(&s, p->destination[0] | (__u64)p->destination[1] << 32);
		siphash_word(&s, p->destination[2] | (__u64)p->destination[3] << 32);
		siphash_word(&s, ports | 37ULL << 56);
	} else {
		siphash_first_word(&s, p->source[0] | (__u64)p->destination[0] << 32);
		siphash_word(&s, ports | 13ULL << 56);
	}
	s.v2 ^= 0xff;
	siphash_round(&s);
	siphash_round(&s);
	siphash_round(&s);
	key = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
	return key > 1 ? key : key + 2;
}

/* SipHash-2-4 over the first 16 bytes of the message, the key of the connection and the number of the receiver. */
inline_always __u64 peer_mac(const struct siphash_state *begun, const struct peer_message *m, __u64 key, __u16 to)
{
	struct siphash_state s = { begun->v0, begun->v1, begun->v2, begun->v3 };
	const __u32 *words = (const void *)m; /* copied by words: the compiler trusts no alignment here */

	siphash24_first_word(&s, words[0] | (__u64)words[1] << 32);
	siphash24_word(&s, words[2] | (__u64)words[3] << 32);
	siphash24_word(&s, key);
	siphash24_word(&s, to | 26ULL << 56);
	return siphash24_end(&s);
}
