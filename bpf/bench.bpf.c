// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* bench.bpf.c - measures a packet's time in another program, and the programs that it is compared with.
 *
 * A repeated test run does not reset its packet: an encapsulating program would see its own output from the second run on.
 * So `wrapper` undoes the growth, writes the next frame of a list and tail-calls the program under test. User space has drawn the flows of the
 * list at random and computed all that is a flow's own, cookie included. It is read in order, so that none of it must be waited for; a table of
 * flows, looked up at random, would measure the cache that it takes from others.
 */
#include "wire/kernel.h"

#include "wire/checksum.h"

#define FRAME_LENGTH 96
#define IN_FLIGHT 192 /* a veth device's queue holds 256 */
#define TIMED 4096
/* NOP NOP TS right behind the fixed part of the TCP header. */
#define ECHO_OFFSET (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct tcphdr) + 8)

/* What to write; user space sets it before a run. */
struct bench_cell {
	__u8 frame[FRAME_LENGTH];
	__u32 listed; /* frames in the list, after which it begins again */
	__s16 growth; /* of the frame, by the program under test; negative: it cuts the end off */
	__u16 length; /* of the whole frame: what lies behind is there once and for all, as no program writes it */
	__u32 ipv6;
};
_Static_assert(sizeof(struct bench_cell) == 108, "bench_cell");

struct bench_state {
	__u64 runs;
	__u64 surprises; /* runs whose frame did not grow as expected */
	__s32 grown; /* what the run before should have left */
	__u32 next; /* in the list */
};
_Static_assert(sizeof(struct bench_state) == 24, "bench_state");

struct bench_cell cell;
struct bench_state state;

/* What a flow's frame has of its own, all as on the wire. */
struct bench_flow {
	__be32 address; /* IPv6: the end of it */
	__be16 port[2]; /* the client's, the service's */
	__be32 echo; /* or what else is at ECHO_OFFSET */
	__sum16 check; /* of the IP header */
	__u16 pad;
	__be32 acknowledged; /* IPv4: by TCP, or what else is there */
};
_Static_assert(sizeof(struct bench_flow) == 20, "bench_flow");

#define LISTED (1 << 20)
struct flow_list {
	struct bench_flow flow[LISTED];
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

inline_always struct bench_flow *listed_flow(__u32 at)
{
	__u32 first = 0;
	struct flow_list *list = bpf_map_lookup_elem(&lists, &first);

	return list ? &list->flow[at & (LISTED - 1)] : 0;
}

/* The next of the list. */
inline_always const struct bench_flow *next_flow(void)
{
	__u32 at = state.next;

	state.next = at + 1 < cell.listed ? at + 1 : 0;
	return listed_flow(at);
}

#define COPY(type, at) (*(type *)(data + (at)) = *(const type *)(cell.frame + (at)))

inline_always void write_ipv6_frame(void *data, const struct bench_flow *flow)
{
	COPY(__u64, 0);
	COPY(__u64, 8);
	COPY(__u32, 16);
	COPY(__u16, 20);
	COPY(__u64, 22);
	COPY(__u32, 30);
	*(__u32 *)(data + 34) = flow->address;
	COPY(__u64, 38);
	COPY(__u64, 46);
	*(__u32 *)(data + 54) = *(const __u32 *)flow->port;
	COPY(__u64, 58);
	COPY(__u64, 66);
	COPY(__u64, 74);
	*(__u32 *)(data + ECHO_OFFSET + 20) = flow->echo;
	COPY(__u64, 86);
	COPY(__u16, 94);
}

/* In pieces that no load of a header spans: one that spans two stores still on their way waits for both, and a frame that comes from a device has
 * been written long ago. */
inline_always int write_frame(struct xdp_md *ctx, const struct bench_flow *flow)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (!flow || data + FRAME_LENGTH > end)
		return -1;
	if (cell.ipv6) {
		write_ipv6_frame(data, flow);
		return 0;
	}
	COPY(__u64, 0);
	COPY(__u64, 8);
	COPY(__u64, 16);
	*(__u16 *)(data + 24) = flow->check;
	*(__u32 *)(data + 26) = flow->address;
	*(__u64 *)(data + 30) = *(const __u32 *)(cell.frame + 30) | (__u64)*(const __u32 *)flow->port << 32;
	*(__u64 *)(data + 38) = *(const __u32 *)(cell.frame + 38) | (__u64)flow->acknowledged << 32;
	COPY(__u64, 46);
	COPY(__u64, 54);
	*(__u64 *)(data + ECHO_OFFSET) = flow->echo | (__u64)*(const __u32 *)(cell.frame + ECHO_OFFSET + 4) << 32;
	COPY(__u64, 70);
	COPY(__u64, 78);
	COPY(__u64, 86);
	COPY(__u16, 94);
	return 0;
}

/* Undoes what the run before left and goes on with the next. */
inline_always int run(struct xdp_md *ctx, const struct bench_flow *flow)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__s64 length = end - data;
	__s32 grown;

	asm volatile("" : "+r"(length)); /* pointers are subtracted whole */
	grown = length - cell.length;
	if (grown != state.grown)
		state.surprises++;
	state.grown = cell.growth;
	state.runs++;
	/* Also where nothing grew: every program is charged the same. */
	if ((grown < 0 ? bpf_xdp_adjust_tail(ctx, -grown) : bpf_xdp_adjust_head(ctx, grown)) || write_frame(ctx, flow))
		return XDP_ABORTED;
	bpf_tail_call(ctx, &tested, 0);
	return XDP_ABORTED;
}

SEC("xdp.frags")
int wrapper(struct xdp_md *ctx)
{
	return run(ctx, next_flow());
}

/* Does what the server's agent does: the flow goes on with the echo that the load balancer wrote, in which its index is. */
inline_always void learn_index(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be32 *echo = data + (state.grown & 63) + ECHO_OFFSET;
	struct bench_flow *flow = listed_flow((state.runs - 1) >> 1);

	if (state.runs && flow && (void *)(echo + 1) <= end)
		flow->echo = *echo;
}

/* Opens the listed flows' connections: of each the packet that gets an index, and one that carries it. */
SEC("xdp.frags")
int opener(struct xdp_md *ctx)
{
	learn_index(ctx);
	return run(ctx, listed_flow(state.runs >> 1));
}

/* Over a pair of devices: the thread that sends, and the frames that came back from the program under test: all, those that look otherwise
 * than they should, and those that the kernel handled in another thread's time. */
struct bench_crossing {
	__u64 sender, arrived, unexpected, elsewhere;
	__u64 sent_at; /* through a switch: when the last was sent, in ns */
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
	return write_frame(ctx, next_flow()) ? XDP_ABORTED : XDP_TX;
}

inline_always void arrive(struct xdp_md *ctx)
{
	if (bpf_xdp_get_buff_len(ctx) != cell.length + cell.growth)
		__sync_fetch_and_add(&crossing.unexpected, 1);
	if (bpf_get_current_task() != crossing.sender)
		__sync_fetch_and_add(&crossing.elsewhere, 1);
	__sync_fetch_and_add(&crossing.arrived, 1);
}

SEC("xdp.frags")
int sink(struct xdp_md *ctx)
{
	arrive(ctx);
	return XDP_DROP;
}

/* A switch that several load balancers are connected to. Port n leads to MAC address 02:00:00:00:01:n; all others are the servers'. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

/* Set by user space: clients' packets go to ports 1 to so many; and so many are on their way at once. */
__u32 forwarders = 1;
__u32 in_switch = 1;

/* With one on its way at once: for how long, in ns; 0: another thread had it at the end. */
__u32 took[TIMED];

/* As sender does: a flow's frames to a port of the switch. */
SEC("xdp.frags")
int spread(struct xdp_md *ctx)
{
	const struct bench_flow *flow;
	__u8 *data;
	__u32 port;

	if (state.runs - *(volatile __u64 *)&crossing.arrived >= in_switch)
		return XDP_DROP;
	crossing.sender = bpf_get_current_task();
	state.runs++;
	flow = next_flow();
	if (!flow || !forwarders || write_frame(ctx, flow))
		return XDP_ABORTED;
	data = (void *)(long)ctx->data;
	if (data + ETH_ALEN > (__u8 *)(long)ctx->data_end)
		return XDP_ABORTED;
	port = 1 + bpf_ntohs(flow->port[0]) % forwarders;
	data[4] = 1;
	data[5] = port;
	crossing.sent_at = bpf_ktime_get_ns();
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
	took[crossing.arrived & (TIMED - 1)] = bpf_get_current_task() == crossing.sender ? bpf_ktime_get_ns() - crossing.sent_at : 0;
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
