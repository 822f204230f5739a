/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* renew.h - a probe of a server's keepalive makes a silent client take the new cookie.
 *
 * A probe has the sequence number before the next one: outside the window, so that the client answers, and does not
 * take its timestamp (RFC 7323 4.3). A copy of it in the window goes ahead: an empty ACK, which the client takes the
 * timestamp of and does not answer. The probe's answer then echoes it.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "server/flow/flow.h"

struct { /* a copy is under way through our own program */
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} renewing SEC(".maps");

inline_always _Bool is_renewing(void)
{
	__u32 zero = 0, *copy = bpf_map_lookup_elem(&renewing, &zero);

	return copy && *copy;
}

/* Sends the copy, if this is a probe. The timestamp is written already. */
static __noinline int renew(struct __sk_buff *skb, const struct flow *f, struct bpf_sock *full)
{
	__u32 zero = 0, sequence, *copy = bpf_map_lookup_elem(&renewing, &zero), at = offsetof(struct tcphdr, seq);
	struct bpf_tcp_sock *tcp = bpf_tcp_sock(full);
	__be32 probe, next;

	if (!f || !tcp || !copy || f->tcp_flags != TCP_FLAG_ACK_BIT || skb->len != (__u32)f->l4 + f->header ||
	    bpf_skb_load_bytes(skb, f->l4 + at, &probe, sizeof(probe)))
		return 0;
	sequence = bpf_ntohl(probe) + 1;
	if (sequence != tcp->snd_una)
		return 0;
	next = bpf_htonl(sequence);
	flow_write(skb, f, at, probe, next);
	*copy = 1;
	bpf_clone_redirect(skb, skb->ifindex, 0);
	*copy = 0;
	flow_write(skb, f, at, next, probe);
	return 1;
}
