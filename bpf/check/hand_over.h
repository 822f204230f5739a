/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* hand_over.h - hands the first packet of a check to user space, which has the program of the load balancer send it. */
#pragma once

#include "wire/kernel.h"
#include "check/inner.h"
#include "check/path.h"

#define HANDED_MOST 2048 /* bytes of a packet */

/* A packet that the load balancer's program is to send. Checksums may be those that the kernel leaves to a device. */
struct check_handed {
	__u32 service;
	__u16 id;
	__u8 direct, ipv6;
	__u32 length;
	__u8 packet[HANDED_MOST];
};
_Static_assert(sizeof(struct check_handed) == 12 + HANDED_MOST, "check_handed");
struct check_handed *unused_handed __attribute__((unused)); /* keeps it in BTF for user space */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 19);
} handed SEC(".maps");

/* Is it one that a server must have got to answer anything? */
inline_always _Bool is_first(struct __sk_buff *skb, const struct check_path *path, const struct inner *inner)
{
	struct tcphdr tcp;

	if (inner->transport != IPPROTO_TCP)
		return path->packets == 1;
	return !bpf_skb_load_bytes(skb, inner->l4, &tcp, sizeof(tcp)) && tcp.syn;
}

/* What finds no room in the ring is lost like any packet. */
inline_always void hand_over(struct __sk_buff *skb, const struct check_path *path, const struct inner *inner)
{
	struct check_handed *to = bpf_ringbuf_reserve(&handed, sizeof(*to), 0);
	__u32 last = inner->length - 1;

	if (!to)
		return;
	to->service = path->service;
	to->id = path->id;
	to->direct = path->by_xdp == CHECK_BY_XDP_DIRECT;
	to->ipv6 = inner->protocol == IPPROTO_IPV6;
	to->length = inner->length;
	asm volatile("" : "+r"(last));
	if (last < HANDED_MOST && !bpf_skb_load_bytes(skb, ETH_HLEN, to->packet, last + 1))
		bpf_ringbuf_submit(to, 0);
	else
		bpf_ringbuf_discard(to, 0);
}
