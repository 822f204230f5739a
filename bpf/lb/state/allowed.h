/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* allowed.h - prefixes of the clients that may begin connections to a service. A service's row names its list, whose
 * entries never change while a row does: another list is another number. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/state/service.h"

struct allowed_key {
	__u32 prefix; /* bits, from list on */
	__u32 list; /* number of the list, and in bit 0 whether the address is IPv6 */
	__be32 address[4];
};
_Static_assert(sizeof(struct allowed_key) == 24, "allowed_key");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 524288);
	__type(key, struct allowed_key);
	__type(value, __u32);
} allowed_sources SEC(".maps");

/* Not inlined: the key lies on the stack only as long as it is used. */
static __noinline _Bool is_allowed(const struct packet *p, const struct service *service)
{
	struct allowed_key key = { .prefix = 32 + 128, .list = service->allow << 1 | p->ipv6 };

	__builtin_memcpy(key.address, p->source, 16);
	return bpf_map_lookup_elem(&allowed_sources, &key) != 0;
}
