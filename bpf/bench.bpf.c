// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* bench.bpf.c - measures a packet's time in another program, and the programs that it is compared with.
 *
 * A repeated test run does not reset its packet: an encapsulating program would see its own output from the second run on.
 * So `wrapper` undoes the growth, writes the headers of a flow and tail-calls the program under test. Flows are drawn at random and
 * computed, not looked up: a table of a million flows would measure the cache that it takes from others. What a connection table has put
 * into their cookies cannot be computed: then user space draws, and lists flows in the order in which they come.
 */
#include "kernel.h"

#include "packet/checksum.h"
#include "packet/siphash.h"

#include "carrier/cookie.h"

#define FRAME_LENGTH 80
#define IN_FLIGHT 192 /* a veth device's queue holds 256 */
/* NOP NOP TS right behind the fixed part of the TCP header. */
#define ECHO_OFFSET (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct tcphdr) + 8)

/* What to write; user space sets it before a run. */
struct bench_cell {
	struct siphash_key cookie_key;
	__u8 frame[FRAME_LENGTH]; /* the client's address and port are 0 */
	__u32 flows; /* distinct ones */
	__u16 growth; /* of the frame, by the program under test */
	__u16 ids; /* the flow's server is 1 + flow % ids */
	__be16 service_port;
	__u8 cookie_bits; /* 0: write no cookie */
	__u8 epoch_parity;
	__u8 index_shift; /* of the index in the cookie's text; 0: write none */
	__u8 listed; /* the flows are those of `lists`, in turn */
	__u16 pad;
};
_Static_assert(sizeof(struct bench_cell) == 112, "bench_cell");

struct bench_state {
	__u64 random, runs;
	__u64 surprises; /* runs whose frame did not grow as expected */
	__u32 grown; /* what the run before should have left */
	__u32 flow; /* of the last run, as in a list */
};
_Static_assert(sizeof(struct bench_state) == 32, "bench_state");

struct bench_cell cell;
struct bench_state state;

/* A flow, and from bit 24 on the index that a connection table has given to it. Read in order, so that none of it must be waited for. */
#define LISTED (1 << 20)
struct flow_list {
	__u32 flow[LISTED];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_list);
} lists SEC(".maps");

/* A fixed index makes the tail call a direct jump. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tested SEC(".maps");

/* xorshift64 (Marsaglia 2003). */
inline_always __u32 draw_flow(void)
{
	__u64 x = state.random;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	state.random = x;
	return ((x >> 32) * cell.flows) >> 32;
}

inline_always __u32 *listed_flow(__u32 at)
{
	__u32 first = 0;
	struct flow_list *list = bpf_map_lookup_elem(&lists, &first);

	return list ? &list->flow[at & (LISTED - 1)] : 0;
}

/* Odd factors permute: up to 2^24 flows have addresses of their own in 10.0.0.0/8. */
inline_always __be32 client_address(__u32 flow)
{
	return bpf_htonl(10u << 24 | (flow * 0x9e3779b1 & 0xffffff));
}

inline_always __be16 client_port(__u32 flow)
{
	return bpf_htons(1024 + (flow * 0x85ebca6b >> 17));
}

/* What the flow's server would write. */
inline_always __u32 make_echo(__u32 flow, __u8 index, __be32 address, __be16 port)
{
	__be32 client[4] = { address };
	__u64 hash = flow_hash(&cell.cookie_key, client, port, cell.service_port, 0);
	__u16 plain = 1 + flow % cell.ids | index << (cell.index_shift & 15);

	return flow << (cell.cookie_bits & 31) | cookie_make(plain, hash, cell.epoch_parity, cell.cookie_bits);
}

/* In the pieces in which headers are read: a load that spans two stores still on their way waits for both, and a frame that
 * comes from a device has been written long ago. */
inline_always void copy_frame(void *data)
{
	const void *frame = cell.frame;

	*(__u64 *)data = *(const __u64 *)frame;
	*(__u32 *)(data + 8) = *(const __u32 *)(frame + 8);
	*(__u16 *)(data + 12) = *(const __u16 *)(frame + 12);
#pragma unroll
	for (int i = sizeof(struct ethhdr); i < FRAME_LENGTH - 2; i += 4)
		*(__u32 *)(data + i) = *(const __u32 *)(frame + i);
	*(__u16 *)(data + FRAME_LENGTH - 2) = *(const __u16 *)(frame + FRAME_LENGTH - 2);
}

inline_always int write_frame(struct xdp_md *ctx, __u32 listed)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	struct tcphdr *tcp = (void *)(ip + 1);
	__u32 flow = listed & 0xffffff;

	if (data + FRAME_LENGTH > end)
		return -1;
	copy_frame(data);
	ip->saddr = client_address(flow);
	checksum_replace32(&ip->check, 0, ip->saddr);
	tcp->source = client_port(flow);
	if (cell.cookie_bits)
		*(__be32 *)(data + ECHO_OFFSET) = bpf_htonl(make_echo(flow, listed >> 24, ip->saddr, tcp->source));
	state.flow = listed;
	return 0;
}

/* Undoes what the run before left and goes on with the next. */
inline_always int run(struct xdp_md *ctx, __u32 listed)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 grown = end - data - FRAME_LENGTH;

	if (grown != state.grown)
		state.surprises++;
	state.grown = cell.growth;
	state.runs++;
	/* Also where nothing grew: every program is charged the same. */
	if (bpf_xdp_adjust_head(ctx, grown) || write_frame(ctx, listed))
		return XDP_ABORTED;
	bpf_tail_call(ctx, &tested, 0);
	return XDP_ABORTED;
}

SEC("xdp.frags")
int wrapper(struct xdp_md *ctx)
{
	const __u32 *listed;

	if (!cell.listed)
		return run(ctx, draw_flow());
	listed = listed_flow(state.runs);
	return listed ? run(ctx, *listed) : XDP_ABORTED;
}

/* Does what the server's agent does: takes the index that the load balancer wrote into the echo for the flow's own. */
inline_always void learn_index(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be32 *echo = data + (state.grown & 63) + ECHO_OFFSET;
	__u32 *listed = listed_flow((state.runs - 1) >> 1), flow, sent;

	if (!state.runs || !listed || (void *)(echo + 1) > end)
		return;
	flow = *listed & 0xffffff;
	sent = make_echo(flow, *listed >> 24, client_address(flow), client_port(flow));
	*listed ^= (bpf_ntohl(*echo) ^ sent) >> (cell.index_shift & 15) << 24;
}

/* Opens the listed flows' connections: of each the packet that gets an index, and one that carries it. */
SEC("xdp.frags")
int opener(struct xdp_md *ctx)
{
	const __u32 *listed;

	learn_index(ctx);
	listed = listed_flow(state.runs >> 1);
	return listed ? run(ctx, *listed) : XDP_ABORTED;
}

/* Over a pair of devices: the thread that sends, and the frames that came back from the program under test: all, those that look otherwise
 * than they should, and those that the kernel handled in another thread's time. */
struct bench_crossing {
	__u64 sender, arrived, strays, elsewhere;
};
struct bench_crossing crossing;

/* Sends the next flow's frame once there is room on the way: it would cost the sender as much to see frames lost. */
SEC("xdp.frags")
int sender(struct xdp_md *ctx)
{
	if (state.runs - *(volatile __u64 *)&crossing.arrived >= IN_FLIGHT)
		return XDP_DROP;
	crossing.sender = bpf_get_current_task();
	state.runs++;
	return write_frame(ctx, draw_flow()) ? XDP_ABORTED : XDP_TX;
}

SEC("xdp.frags")
int sink(struct xdp_md *ctx)
{
	if (bpf_xdp_get_buff_len(ctx) != FRAME_LENGTH + cell.growth)
		__sync_fetch_and_add(&crossing.strays, 1);
	if (bpf_get_current_task() != crossing.sender)
		__sync_fetch_and_add(&crossing.elsewhere, 1);
	__sync_fetch_and_add(&crossing.arrived, 1);
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
