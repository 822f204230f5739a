/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* path.h - how a check reaches its server: stored with its socket. */
#pragma once

#include "wire/kernel.h"

/* CHECK_HERE: to a server on this host, by loopback. */
enum check_forward { CHECK_L2, CHECK_IPIP, CHECK_GUE, CHECK_HERE };

enum check_by_xdp { CHECK_BY_KERNEL, CHECK_BY_XDP, CHECK_BY_XDP_DIRECT };

/* How a check reaches its server. */
struct check_path {
	__be32 to[4]; /* where the socket is connected to: the VIP, or the server's own address */
	__be32 vip[4]; /* what the packets are addressed to on the way: `to`, or the VIP in its place (translate.h) */
	__be32 address[4]; /* of the server */
	__be32 source[4]; /* outer source */
	__u8 destination_mac[6];
	__u8 source_mac[6];
	__u32 ifindex;
	__u16 vlan; /* 802.1Q id in host order, 0: untagged */
	__u8 forward; /* enum check_forward */
	__u8 outer_ipv6;
	__u32 service; /* its number in the load balancer's tables */
	__u16 id; /* of the server */
	__u8 by_xdp; /* enum check_by_xdp */
	__u8 pad;
	__u32 packets; /* sent on this path: 0 means that the kernel routes them past this program */
	__u32 echoes; /* of them: those that echo a timestamp of the server */
	__u32 echo; /* the newest of these */
};
_Static_assert(sizeof(struct check_path) == 104, "check_path");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct check_path);
} paths SEC(".maps");
