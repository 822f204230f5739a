/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* node.h - what this node knows of itself and of single connections; all of it bounded, none of it authoritative. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/state/service.h"

/* Frames that a switch floods reach us too: only those to our own address are ours. Index: ifindex % INTERFACES. Each
 * process's own, as its program is: no map, so that no look-up stands before every packet. */
#define INTERFACES 64
struct interface {
	__u32 ifindex;
	__u8 mac[6];
	__u16 pad;
};

struct interface interfaces[INTERFACES];

/* A client's connection to a service. */
struct connection_key {
	__be32 client[4];
	__be16 client_port, service_port;
	__u32 service;
};
_Static_assert(sizeof(struct connection_key) == 24, "connection_key");

inline_always void connection_of(struct connection_key *key, const struct packet *p, const struct service *service)
{
	__builtin_memcpy(key->client, p->source, 16);
	key->client_port = p->source_port;
	key->service_port = p->destination_port;
	key->service = service->vip_number;
}

/* Connections whose FIN or RST passed with a cookie: their late RSTs have no timestamp. -> server id */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct connection_key);
	__type(value, __u64);
} closing SEC(".maps");

struct fragment_key {
	__be32 source[4], destination[4];
	__u32 id;
	__u32 protocol;
};
_Static_assert(sizeof(struct fragment_key) == 40, "fragment_key");

/* Datagrams whose first fragment passed. -> service number << 32 | server id */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct fragment_key);
	__type(value, __u64);
} fragments SEC(".maps");

/* return: through. Who sent this answer: address and port of the server (nat), or VIP, port and the server's MAC (l2).
 * -> service number << 32 | server id */
struct return_key {
	__be32 address[4];
	__be16 port;
	__u8 mac[6];
	__u8 protocol;
	__u8 pad[3];
};
_Static_assert(sizeof(struct return_key) == 28, "return_key");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct return_key);
	__type(value, __u64);
} returns SEC(".maps");

#define CLOCK_KNOWN (1ULL << 32)
#define CLOCK_DOUBTED (1ULL << 33) /* something that came from there says otherwise: user space shall ask the server */

/* return: through. TSval of the server less our own clock, in ms, and what is known of it. User space asks servers;
 * packets, which anybody can forge, teach nothing but doubt. Index: server.counter. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u64);
} clocks SEC(".maps");

/* destination_mac: of six bytes, read as words. */
inline_always _Bool addressed_to_us(const struct xdp_md *ctx, const void *destination_mac)
{
	__u32 ifindex = ctx->ingress_ifindex;
	const struct interface *interface = &interfaces[ifindex % INTERFACES];

	if (interface->ifindex != ifindex)
		return 1;
	return *(const __u32 *)destination_mac == *(const __u32 *)interface->mac &&
	       *(const __u16 *)(destination_mac + 4) == *(const __u16 *)(interface->mac + 4);
}

inline_always __u32 node_clock_ms(void)
{
	return bpf_ktime_get_coarse_ns() / 1000000;
}
