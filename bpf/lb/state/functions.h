/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* functions.h - network functions (NAT, firewalls, proxies) whose gateway this node is: services with all addresses of
 * a prefix, and all their ports.
 *
 *   function_prefixes: longest prefix -> number of the service; 0: not for functions; FUNCTION_HOST: this host's
 *   returns:           address of the service with the length of its prefix, FUNCTION_PROTOCOL and a MAC -> the
 *                      function that has it; FUNCTION_OF_ANY instead of these: it is a function's
 */
#pragma once

#include "wire/kernel.h"
#include "lb/state/node.h"
#include "lb/state/service.h"

/* Are there any? Each process's own, as its program is. */
volatile __u32 functions_enabled;

/* Stands for TCP, UDP and ICMP echo. No packet has that protocol (RFC 3692) and is looked for. */
#define FUNCTION_PROTOCOL 254

#define FUNCTION_HOST 0xffffffff
#define FUNCTION_OF_ANY 0xffff /* port, with no address */

/* IPv4 addresses are mapped into IPv6 (RFC 4291 2.5.5.2). */
struct function_prefix {
	__u32 bits;
	__be32 address[4];
};
_Static_assert(sizeof(struct function_prefix) == 20, "function_prefix");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct function_prefix);
	__type(value, __u32);
} function_prefixes SEC(".maps");

/* The service of an address. 0: it is of no function. */
static __noinline __u32 function_service(const __be32 address[4], _Bool ipv6)
{
	struct function_prefix key = { .bits = 128 };
	const __u32 *number;

	if (ipv6) {
		__builtin_memcpy(key.address, address, 16);
	} else {
		key.address[2] = bpf_htonl(0xffff);
		key.address[3] = address[0];
	}
	number = bpf_map_lookup_elem(&function_prefixes, &key);
	return number ? *number : 0;
}

/* Which function has a MAC. NO_ID: none of the service. service 0: of any. */
static __noinline __u32 function_by_mac(const void *mac, const struct service *service)
{
	struct return_key key = { .protocol = FUNCTION_PROTOCOL, .port = FUNCTION_OF_ANY };
	const __u64 *known;

	if (service) {
		__builtin_memcpy(key.address, service->vip, 16);
		key.port = service->port;
	}
	__builtin_memcpy(key.mac, mac, ETH_ALEN);
	known = bpf_map_lookup_elem(&returns, &key);
	return known ? (__u32)*known & 0xffff : NO_ID;
}

/* Is a network function the sender of the frame? A VIP's connections do not matter then: the answer must find the
 * function. */
inline_always _Bool is_from_function(const void *data, const void *end)
{
	return functions_enabled && data + sizeof(struct ethhdr) <= end &&
	       function_by_mac(((const struct ethhdr *)data)->h_source, 0) != NO_ID;
}
