/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* answers.h - how much this node does that costs more than to forward: answers of its own (RFC 1812 4.3.2.8, RFC
 * 4443 2.4 f), packets that it sends in fragments. So much each CPU, whoever asks. */
#pragma once

#include "wire/kernel.h"

enum answer { ANSWER_ECHO, ANSWER_TOO_BIG, ANSWER_IN_FRAGMENTS, ANSWER_UNSERVED, ANSWERS };

/* Implementation constants: 1000 a second, as Linux (icmp_msgs_per_sec); in a burst 250, more than come in one tick of
 * the coarse clock. */
#define ANSWER_NS 1000000
#define ANSWER_IN_FRAGMENTS_NS \
	20000 /* 50,000 packets a second: 600 Mbit/s of 1500 bytes. Each takes 2.4 us at tc: an eighth of a CPU */
#define ANSWER_BURST_NS 250000000

/* When the answers given so far will have been paid for. Index: enum answer. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ANSWERS);
	__type(key, __u32);
	__type(value, __u64);
} answer_debts SEC(".maps");

/* Takes the leave for one answer. 0: there was none. */
inline_always _Bool answer_leave(__u32 answer)
{
	__u64 *debt = bpf_map_lookup_elem(&answer_debts, &answer), now = bpf_ktime_get_coarse_ns();

	if (!debt)
		return 0;
	if (*debt < now)
		*debt = now;
	if (*debt > now + ANSWER_BURST_NS)
		return 0;
	*debt += answer == ANSWER_IN_FRAGMENTS ? ANSWER_IN_FRAGMENTS_NS : ANSWER_NS;
	return 1;
}
