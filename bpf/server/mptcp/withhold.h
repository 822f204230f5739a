/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* withhold.h - MPTCP: ports of other epochs than the current one are not announced.
 *
 * The kernel announces each of its endpoints to every connection, and it ends the subflows of one that is removed. So
 * the endpoint of the last epoch stays for the connections that know it, and its ADD_ADDR (RFC 8684 3.4.1) to others is
 * overwritten by NOPs: else new connections would join there, and the epoch would never end. The kernel repeats what is
 * not echoed, three times; newer endpoints it has announced before.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/timestamp.h"
#include "server/agent.h"
#include "server/flow/flow.h"

/* Specification constants */
#define MPTCP_OPTION 30
#define MPTCP_ADD_ADDR 0x30 /* subtype 3; without the flag E, that of an echo */

/* Of IPv4, with a port. Linux writes options of MPTCP last, and this one only into a segment without data. */
struct add_addr {
	__u8 kind, length, subtype, id;
	__be32 address;
	__be16 port;
	__u8 hmac[8];
	__u8 padding[2];
} __attribute__((packed));
_Static_assert(sizeof(struct add_addr) == 20, "add_addr");
#define ADD_ADDR_LENGTH 18

static __noinline int withhold_port(struct __sk_buff *skb, const struct flow *f)
{
	struct served_key key = { .protocol = IPPROTO_TCP };
	const struct served *served;
	struct add_addr option;
	__be32 words[5], nothing[5];
	__u32 at;

	if (!f)
		return 0;
	at = f->l4 + f->header - sizeof(option);
	if (bpf_skb_load_bytes(skb, at, words, sizeof(words)))
		return 0;
	__builtin_memcpy(&option, words, sizeof(option));
	if (option.kind != MPTCP_OPTION || option.length != ADD_ADDR_LENGTH || option.subtype != MPTCP_ADD_ADDR)
		return 0;
	key.address[0] = option.address;
	key.port = option.port;
	served = served_find(&key);
	if (!served || !served->withheld)
		return 0;
	__builtin_memset(nothing, OPTION_NOP, sizeof(nothing));
	bpf_l4_csum_replace(skb, f->l4 + offsetof(struct tcphdr, check), 0,
			    bpf_csum_diff(words, sizeof(words), nothing, sizeof(nothing), 0), 0);
	bpf_skb_store_bytes(skb, at, nothing, sizeof(nothing), 0);
	return 0;
}
