/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* kernel.h - the kernel's types, helpers and constants that our programs use, and no more. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>

#ifndef AF_INET
#define AF_INET 2
#define AF_INET6 10
#endif

#define inline_always static __always_inline

/* Not in every distribution's headers. */
#define IP_FRAGMENT_OFFSET 0x1fff
#define IP_MORE_FRAGMENTS 0x2000
#define IP_DONT_FRAGMENT 0x4000
#define VLAN_ID_MASK 0x0fff
#define IPV6_MIN_MTU 1280

#define TC_CONTINUE (-1) /* TCX_NEXT, TC_ACT_UNSPEC: what we do is invisible to other programs */
#define TC_DROP 2

struct vlan_header {
	__be16 tci;
	__be16 protocol;
};

struct ipv6_fragment_header {
	__u8 nexthdr;
	__u8 reserved;
	__be16 offset_and_more;
	__be32 identification;
};

/* <linux/icmp.h> needs the C library of another architecture. RFC 792, RFC 4443; one shape serves both versions. */
struct icmp_header {
	__u8 type, code;
	__sum16 checksum;
	__be16 unused;
	__be16 mtu; /* RFC 1191; for ICMPv6 unused and mtu are one 32-bit MTU */
};

#define ICMP_ECHO_REPLY 0
#define ICMP_UNREACHABLE 3
#define ICMP_PROTOCOL_UNREACHABLE 2 /* a code, as the next two */
#define ICMP_PORT_UNREACHABLE 3
#define ICMP_FRAGMENTATION_NEEDED 4
#define ICMP_ECHO_REQUEST 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12
#define ICMPV6_UNREACHABLE 1
#define ICMPV6_PORT_UNREACHABLE 4 /* a code */
#define ICMPV6_TOO_BIG 2
#define ICMPV6_PARAMETER_PROBLEM 4
#define ICMPV6_ECHO_REQUEST 128
#define ICMPV6_ECHO_REPLY 129

char LICENSE[] SEC("license") = "Dual BSD/GPL";
