/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* frame.h - the list of flows, and their frames as they are written for each run. */
#pragma once

#include "wire/kernel.h"

#define FRAME_LENGTH 96
#define IN_FLIGHT 192 /* a veth device's queue holds 256 */
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
	__u16 wait; /* through a switch: until the next is due, in parts of the mean */
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

/* In pieces that no load of a header spans: one that spans two stores still on their way waits for both, and a frame
 * that comes from a device has been written long ago. */
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
