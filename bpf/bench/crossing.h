/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* crossing.h - runs of the program under test: in place, over a pair of devices, or through a switch. */
#pragma once

#include "wire/kernel.h"
#include "bench/frame.h"

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

/* Does what the server's agent does: the flow goes on with the echo that the load balancer wrote, in which its index
 * is. */
inline_always void learn_index(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be32 *echo = data + (state.grown & 63) + ECHO_OFFSET;
	struct bench_flow *flow = listed_flow((state.runs - 1) >> 1);

	if (state.runs && flow && (void *)(echo + 1) <= end)
		flow->echo = *echo;
}

/* Over a pair of devices: the thread that sends, and the frames that came back from the program under test: all, those
 * that look otherwise than they should, and those that the kernel handled in another thread's time. */
struct bench_crossing {
	__u64 sender, arrived, unexpected, elsewhere;
	__u64 due; /* through a switch: when the next is, in ns */
	__u64 called; /* when it was last asked for */
};
struct bench_crossing crossing;

inline_always void arrive(struct xdp_md *ctx)
{
	if (bpf_xdp_get_buff_len(ctx) != cell.length + cell.growth)
		__sync_fetch_and_add(&crossing.unexpected, 1);
	if (bpf_get_current_task() != crossing.sender)
		__sync_fetch_and_add(&crossing.elsewhere, 1);
	__sync_fetch_and_add(&crossing.arrived, 1);
}

/* A switch that several load balancers are connected to. Port n leads to MAC address 02:00:00:00:01:n; all others are
 * the servers'. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

/* Set by user space: clients' packets go to ports 1 to so many; so many are on their way at once; from when one is due
 * to when the next is it takes so many ns on average, or 0: it is due once there is room; and a run begins. */
__u32 forwarders = 1;
__u32 in_switch = 1;
__u32 pace;
__u32 resumed;
#define WAIT_SHIFT 12 /* as in internal/lab/bench/wrapper/crossing.go */
/* More than what is on its way through a switch takes: the sender's thread did not run. */
#define STALLED_NS 500000

/* For how long each of the list was on its way since it was due, in ns; 0: another thread had it at the end. */
__u32 took[LISTED];

/* What a frame says of itself, behind its UDP header. */
struct bench_mark {
	__u64 due;
	__u32 number;
} __attribute__((packed));
#define MARK_OFFSET (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr))

/* When the next frame is due; 0: not yet. While nobody asks for it, time stands still. */
inline_always __u64 due_now(void)
{
	__u64 now = bpf_ktime_get_ns(), due;

	if (!pace)
		return now;
	if (!crossing.due)
		crossing.due = now;
	else if (resumed || now - crossing.called > STALLED_NS)
		crossing.due += now - crossing.called;
	resumed = 0;
	crossing.called = now;
	due = crossing.due;
	return due <= now ? due : 0;
}

inline_always int mark_frame(struct xdp_md *ctx, __u64 due)
{
	struct bench_mark *mark = (void *)(long)ctx->data + MARK_OFFSET;

	if ((void *)(mark + 1) > (void *)(long)ctx->data_end)
		return -1;
	mark->due = due;
	mark->number = state.runs - 1;
	return 0;
}

inline_always void read_mark(struct xdp_md *ctx)
{
	const struct bench_mark *mark = (void *)(long)ctx->data + (cell.growth & 63) + MARK_OFFSET;

	if ((void *)(mark + 1) <= (void *)(long)ctx->data_end)
		took[mark->number & (LISTED - 1)] =
			bpf_get_current_task() == crossing.sender ? bpf_ktime_get_ns() - mark->due : 0;
}
