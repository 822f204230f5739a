// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* link.bpf.c - the wires of a lab: a program that only passes frames, and one that loses them.
 *
 * XDP_TX and XDP_REDIRECT on a veth need some XDP program on the peer; `pass` is that program.
 * `lose` runs at tcx egress of one end and drops what `faults` says. It cannot delay: that needs
 * a qdisc that honours skb->tstamp (fq), which a kernel may lack.
 */
#include "wire/kernel.h"
#include "link/faults.h"

SEC("tc")
int lose(struct __sk_buff *skb)
{
	struct segment segment = {};
	__u32 zero = 0;
	struct link_faults *fault = bpf_map_lookup_elem(&faults, &zero);
	struct link_losses *loss = bpf_map_lookup_elem(&losses, &zero);

	if (!fault || !loss)
		return TCX_NEXT_PROGRAM;
	parse(skb, &segment);
	if (!segment.is_ip)
		return TCX_NEXT_PROGRAM;
	if (lose_handshake(&segment, fault, loss))
		return TCX_DROP_FRAME;
	if (fault->drop_permille && bpf_get_prandom_u32() % LOSS_SCALE_PERMILLE < fault->drop_permille) {
		__sync_fetch_and_add(&loss->dropped_random, 1);
		return TCX_DROP_FRAME;
	}
	return TCX_NEXT_PROGRAM;
}

SEC("xdp.frags")
int pass(struct xdp_md *context)
{
	return XDP_PASS;
}
