// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* peer.bpf.c - a load balancer that is not ours: IP in IP to the one server that its map names for a VIP. */
#include "wire/kernel.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 30); /* more than machines have */
	__type(key, __be32);
	__type(value, __be32);
} servers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[2]); /* bytes, packets */
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} next SEC(".maps");

struct recent {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 64);
	__type(key, __be32);
	__type(value, __be32);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 4);
	__type(key, __u32);
	__array(values, struct recent);
} caches SEC(".maps");

const volatile __u8 enabled;

SEC("xdp/encapsulate")
int encapsulate(struct xdp_md *ctx)
{
	void *data, *end, *cache;
	__u32 zero = 0;
	struct ethhdr *eth;
	struct iphdr *ip, outer;
	__be32 *server;
	__u64 *count;

	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	ip = data + sizeof(*eth);
	if ((void *)(ip + 1) > end)
		return XDP_DROP;
	cache = bpf_map_lookup_elem(&caches, &zero);
	server = bpf_map_lookup_elem(&servers, &ip->daddr);
	if (!cache || !server)
		return XDP_DROP;
	bpf_map_update_elem(cache, &ip->saddr, server, BPF_ANY);
	outer = *ip;
	outer.protocol = IPPROTO_IPIP;
	outer.daddr = *server;
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(outer)))
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	eth = data;
	if (data + sizeof(*eth) + sizeof(outer) > end)
		return XDP_DROP;
	eth->h_proto = bpf_htons(ETH_P_IP);
	__builtin_memcpy(eth + 1, &outer, sizeof(outer));
	count = bpf_map_lookup_elem(&counters, &zero);
	if (count)
		count[1]++;
	return XDP_TX;
}

SEC("xdp/balance")
int balance(struct xdp_md *ctx)
{
	if (enabled)
		bpf_tail_call(ctx, &next, 1);
	return XDP_PASS;
}
