// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* bench.bpf.c - measures a packet's time in another program, and the programs that it is compared with.
 *
 * A repeated test run does not reset its packet: an encapsulating program would see its own output from the second run
 * on. So `wrapper` undoes the growth, writes the next frame of a list and tail-calls the program under test. User space
 * has drawn the flows of the list at random and computed all that is a flow's own, cookie included. It is read in
 * order, so that none of it must be waited for; a table of flows, looked up at random, would measure the cache that it
 * takes from others.
 */
#include "wire/kernel.h"
#include "wire/checksum.h"
#include "bench/crossing.h"
#include "bench/frame.h"

SEC("xdp.frags")
int wrapper(struct xdp_md *ctx)
{
	return run(ctx, next_flow());
}

/* Opens the listed flows' connections: of each the packet that gets an index, and one that carries it. */
SEC("xdp.frags")
int opener(struct xdp_md *ctx)
{
	learn_index(ctx);
	return run(ctx, listed_flow(state.runs >> 1));
}

/* Sends the next flow's frame once there is room on the way: it would cost the sender as much to see frames lost. */
SEC("xdp.frags")
int sender(struct xdp_md *ctx)
{
	if (state.runs - *(volatile __u64 *)&crossing.arrived >= IN_FLIGHT)
		return XDP_DROP;
	crossing.sender = bpf_get_current_task();
	state.runs++;
	return write_frame(ctx, next_flow()) ? XDP_ABORTED : XDP_TX;
}

SEC("xdp.frags")
int sink(struct xdp_md *ctx)
{
	arrive(ctx);
	return XDP_DROP;
}

/* As sender does: a flow's frames to a port of the switch. */
SEC("xdp.frags")
int spread(struct xdp_md *ctx)
{
	const struct bench_flow *flow;
	__u8 *data;
	__u32 port;
	__u64 due = due_now();

	if (!due || state.runs >= cell.listed || state.runs - *(volatile __u64 *)&crossing.arrived >= in_switch)
		return XDP_DROP;
	crossing.sender = bpf_get_current_task();
	state.runs++;
	flow = next_flow();
	if (!flow || !forwarders || write_frame(ctx, flow) || mark_frame(ctx, due))
		return XDP_ABORTED;
	crossing.due += (__u64)pace * flow->wait >> WAIT_SHIFT;
	data = (void *)(long)ctx->data;
	if (data + ETH_ALEN > (__u8 *)(long)ctx->data_end)
		return XDP_ABORTED;
	port = 1 + bpf_ntohs(flow->port[0]) % forwarders;
	data[4] = 1;
	data[5] = port;
	return bpf_redirect_map(&ports, port, XDP_ABORTED);
}

SEC("xdp.frags")
int deliver(struct xdp_md *ctx)
{
	const __u8 *data = (void *)(long)ctx->data;

	if (data + ETH_ALEN > (__u8 *)(long)ctx->data_end)
		return XDP_DROP;
	if (data[4] == 1)
		return bpf_redirect_map(&ports, data[5], XDP_ABORTED);
	read_mark(ctx);
	arrive(ctx);
	return XDP_DROP;
}

SEC("xdp.frags")
int empty(struct xdp_md *ctx)
{
	return XDP_TX;
}

SEC("xdp.frags")
int parse_swap(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	__u8 mac[ETH_ALEN];

	if ((void *)(tcp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->version != 4 || ip->ihl != 5 ||
	    ip->protocol != IPPROTO_TCP || tcp->doff < 5)
		return XDP_PASS;
	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	return XDP_TX;
}

/* The floor: the outer header is the same for every packet but for its length and checksum. 10.1.0.1 <- 10.0.0.1 */
SEC("xdp.frags")
int minimal_ipip(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	__u16 length;

	if ((void *)(ip + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	length = bpf_ntohs(ip->tot_len);
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*ip)))
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	eth = data;
	ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > end)
		return XDP_DROP;
	*(__u32 *)eth->h_dest = bpf_htonl(0x02000000);
	*(__u16 *)(eth->h_dest + 4) = bpf_htons(2);
	*(__u32 *)eth->h_source = bpf_htonl(0x02000000);
	*(__u16 *)(eth->h_source + 4) = bpf_htons(1);
	eth->h_proto = bpf_htons(ETH_P_IP);
	write_ipv4_header(ip, 0, length + sizeof(*ip), 0, 1, IPPROTO_IPIP, bpf_htonl(10u << 24 | 1),
			  bpf_htonl(10u << 24 | 1 << 16 | 1));
	return XDP_TX;
}
