/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* rewrite.h - a packet is rewritten once: where one device is made on another (VLAN, bridge, bond, macvlan), it passes
 * the programs of both.
 *
 * tc_index tells. But it is not ours alone: the kernel writes the class of a filter there that ends the walk over
 * filters; dsmark (until Linux 6.3) and GRED write it, too. So each CPU also knows what it has written last: between
 * two devices a packet rarely leaves its CPU or lets another one by. Receive packet steering of a bridge does both. An
 * echo that was restored is then no cookie, and left alone, but that of a handshake looks like one that was never
 * marked: those are known by flow. A number that agrees by chance is as good as what would be written.
 */
#pragma once

#include "wire/kernel.h"
#include "server/flow/flow.h"

/* Implementation constants */
#define TSECR 4 /* from TSval */
#define RESTORED_REQUESTS 1024 /* a power of two: many more than are between two devices */

enum { REWRITTEN_AT_INGRESS = 0xba11, REWRITTEN_AT_EGRESS = 0xba57 };

struct rewritten {
	__be32 client[4];
	__be32 word;
	__be16 client_port, port;
};
_Static_assert(sizeof(struct rewritten) == 24, "rewritten");

struct { /* by direction */
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct rewritten);
} last_rewritten SEC(".maps");

struct { /* the third packets of handshakes, by some bits of the client */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RESTORED_REQUESTS);
	__type(key, __u32);
	__type(value, struct rewritten);
} restored_requests SEC(".maps");

inline_always struct rewritten *restored_request(const struct flow *f)
{
	__u32 index = (f->client[0] ^ f->client[3] ^ f->client_port) & (RESTORED_REQUESTS - 1);

	return bpf_map_lookup_elem(&restored_requests, &index);
}

inline_always void rewritten_note(struct rewritten *r, const struct flow *f, __be32 word)
{
	if (!r)
		return;
	__builtin_memcpy(r->client, f->client, sizeof(r->client));
	r->word = word;
	r->client_port = f->client_port;
	r->port = f->key.port;
}

inline_always _Bool rewritten_is(const struct rewritten *r, const struct flow *f, __be32 word)
{
	return r && r->word == word && r->client_port == f->client_port && r->port == f->key.port &&
	       !__builtin_memcmp(r->client, f->client, sizeof(r->client));
}

inline_always _Bool rewritten_before(struct __sk_buff *skb, const struct flow *f, enum flow_direction direction)
{
	__u32 index = direction;

	return skb->tc_index == (direction == FROM_CLIENT ? REWRITTEN_AT_INGRESS : REWRITTEN_AT_EGRESS) ||
	       rewritten_is(bpf_map_lookup_elem(&last_rewritten, &index), f,
			    direction == FROM_CLIENT ? f->echo : f->value);
}

/* Writes TSecr of what comes from a client, TSval of what goes to one. */
inline_always void rewrite(struct __sk_buff *skb, const struct flow *f, enum flow_direction direction, __be32 word)
{
	__u32 index = direction;

	if (direction == FROM_CLIENT)
		flow_write(skb, f, f->option + TSECR, f->echo, word);
	else
		flow_write(skb, f, f->option, f->value, word);
	skb->tc_index = direction == FROM_CLIENT ? REWRITTEN_AT_INGRESS : REWRITTEN_AT_EGRESS;
	rewritten_note(bpf_map_lookup_elem(&last_rewritten, &index), f, word);
}
