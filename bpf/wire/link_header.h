/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* link_header.h - the Ethernet header of a packet at tc, which generic XDP may have lost. */
#pragma once

#include "wire/kernel.h"

/* How much of a packet that arrives is in front of its IP header: the Ethernet header, or nothing. Generic XDP on Linux
 * >= 6.9 loses the length of the link header (skb->mac_len) when it copies a packet; then programs at tc see it from
 * its IP header on. What the bytes look like proves nothing: clients choose their addresses. Most MACs do not begin
 * like an IP header of the version; for the others the kernel, which knows where its network header is, is asked
 * whether as many bytes follow it as follow skb->data. */
inline_always __u32 link_header(struct __sk_buff *skb, __u8 version)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u64 linear = end - data;
	__u8 byte;

	asm volatile("" : "+r"(linear)); /* the difference of two pointers, and nothing else of them */
	if (data + 1 > end || *(__u8 *)data >> 4 != version)
		return ETH_HLEN;
	return bpf_skb_load_bytes_relative(skb, linear - 1, &byte, sizeof(byte), BPF_HDR_START_NET) ? ETH_HLEN : 0;
}

/* Puts one where there is none. 0, or an error. */
inline_always long link_header_put(struct __sk_buff *skb, const struct ethhdr *header)
{
	return bpf_skb_change_head(skb, sizeof(*header), 0)
		       ?: bpf_skb_store_bytes(skb, 0, header, sizeof(*header), BPF_F_RECOMPUTE_CSUM);
}

/* Puts back the one that came, if it was lost. 0, or an error. */
inline_always long link_header_restore(struct __sk_buff *skb)
{
	struct ethhdr header;

	if (link_header(skb, 4) && link_header(skb, 6))
		return 0;
	return bpf_skb_load_bytes_relative(skb, 0, &header, sizeof(header), BPF_HDR_START_MAC)
		       ?: link_header_put(skb, &header);
}
