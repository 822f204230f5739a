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
	__u64 sent_at; /* through a switch: when the last was sent, in ns */
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

/* Set by user space: clients' packets go to ports 1 to so many; and so many are on their way at once. */
__u32 forwarders = 1;
__u32 in_switch = 1;

/* With one on its way at once: for how long, in ns; 0: another thread had it at the end. */
__u32 took[TIMED];
