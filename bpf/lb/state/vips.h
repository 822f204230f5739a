/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* vips.h - destinations: the number of the service at an address and port, and for the fast path its row. */
#pragma once

#include "wire/kernel.h"
#include "wire/port_ranges.h"

/* Above the number, the id of the server whose further subflows of MPTCP connections join at this port. 0: a port of
 * the service itself. */
#define VIP_JOIN_SHIFT 16

/* Port 0 and a protocol name the ranges of ports that services have there (wire/port_ranges.h).
 * Port 0 and protocol 0 stand for the address itself, for echo requests, path errors and what no service takes: 0 or
 * VIP_REJECTS. Port 0 and FORMER_VIP stand for one that was a VIP and is none now. No packet has that protocol
 * (reserved by IANA) and is looked for. */
#define FORMER_VIP 255
#define VIP_REJECTS (1u << 31) /* unserved: reject */
struct vip_key {
	__be32 address[4];
	__be16 port;
	__u8 protocol;
	__u8 ipv6;
};
_Static_assert(sizeof(struct vip_key) == 20, "vip_key");

/* A faster copy of vips with a hash of our own: one probe costs a fourth of a look-up there. A destination whose slot
 * another one has is in vips alone. The first eight bytes are the address as on the wire, protocol, 1, and the port as
 * on the wire. Of an IPv6 address half a word is there, and 2: others may have the same, so only lb/walk/fast_path.h
 * looks there, which compares all of it. */
#define VIP_SLOTS 65536
struct vip_slot {
	__u64 destination;
	__u32 number;
	__u32 fast; /* lb/walk/fast_path.h: row of services, and from bit 0 on cookie_bits - 1; 0: not for this service.
		       As with service_rows this word flips */
};
#define FAST_ROW_SHIFT 4
#define FAST_OTHERS                                                                                                   \
	(1u << 31) /* not cookies by IP in IP: programs that only know these share the map during an update, and find \
		      no row so far behind */
#define FAST_THROUGH (1u << 30) /* return: through, for lb_rewritten alone */
#define FAST_REPLICATED (1u << 29) /* affinity: replicated, for lb_replicated alone */
#define FAST_MORE_SHIFT 29 /* to those two bits */
_Static_assert(sizeof(struct vip_slot) == 16, "vip_slot");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct vip_key);
	__type(value, __u32);
} vips SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, VIP_SLOTS);
	__type(key, __u32);
	__type(value, struct vip_slot);
} vip_slots SEC(".maps");

inline_always __u64 vip_destination(__be32 address, __be16 port, __u8 protocol)
{
	return address | (__u64)protocol << 32 | 1ULL << 40 | (__u64)port << 48;
}

inline_always __u64 vip_destination6(const __u64 address[2], __be16 port, __u8 protocol)
{
	return (address[0] + address[1] * 0x9e3779b97f4a7c15ULL) >> 32 | (__u64)protocol << 32 | 2ULL << 40 |
	       (__u64)port << 48;
}

inline_always const struct vip_slot *find_vip_slot(__u64 destination)
{
	__u32 index = destination * 0x9e3779b97f4a7c15ULL >> 48;
	const struct vip_slot *slot = bpf_map_lookup_elem(&vip_slots, &index);

	return slot && slot->destination == destination ? slot : 0;
}

/* Set by user space: an IPv4 address of a service does not have its slot. */
volatile __u32 addresses_displaced;

inline_always const __u32 *find_vip_key(const __be32 address[4], __be16 port, __u8 protocol, _Bool ipv6)
{
	struct vip_key key = { .port = port, .protocol = protocol, .ipv6 = ipv6 };

	if (!ipv6) {
		const struct vip_slot *slot = find_vip_slot(vip_destination(address[0], port, protocol));

		if (slot)
			return &slot->number;
	}
	__builtin_memcpy(key.address, address, 16);
	return bpf_map_lookup_elem(&vips, &key);
}

/* The number of the service that has the port among others. 0: none. */
inline_always const __u32 *find_vip_range(const __be32 address[4], __be16 port, __u8 protocol, _Bool ipv6)
{
	const __u32 *list = find_vip_key(address, 0, protocol, ipv6);
	const struct port_range *range = list && *list & PORT_RANGES ? port_range_find(*list, port) : 0;

	return range ? &range->value : 0;
}

/* Is it an address of a service? */
inline_always _Bool is_vip_address(const __be32 address[4], _Bool ipv6)
{
	if (!ipv6 && !addresses_displaced)
		return find_vip_slot(vip_destination(address[0], 0, 0)) != 0;
	return find_vip_key(address, 0, 0, ipv6) != 0;
}

/* The number of the service of a destination, which is an address alone or has a port. 0: not ours. */
inline_always const __u32 *find_vip(const __be32 address[4], __be16 port, __u8 protocol, _Bool ipv6)
{
	const __u32 *number = find_vip_key(address, port, protocol, ipv6);

	if (number)
		return *number & PORT_RANGES ? 0 : number;
	return port && port_ranges_used ? find_vip_range(address, port, protocol, ipv6) : 0;
}
