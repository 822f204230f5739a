// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* check.bpf.c - health checks take the path of traffic: from a socket of this host, addressed to the VIP, to one
 * certain server.
 *
 * The prober connects to the VIP; the kernel routes that like anything else. Before the packets leave, `check_egress`
 * finds in the storage of their socket which server they are for and sends them there as the load balancer sends a
 * client's: only the MAC changed, or encapsulated. The server answers this host directly, as it answers clients.
 *
 * Where the load balancer's program runs in native mode, a driver may refuse what it redirects and transmit all that
 * the kernel sends. So SYNs, and the first datagrams of sockets, are handed to user space, which has the load
 * balancer's program send them (lb/walk/check.h): a server answers only if they arrive. These checks may also be
 * addressed to the server itself.
 *
 * A VIP may be this host's own, or out of its reach. Then the prober connects to the server's address, and the VIP
 * takes its place inside the tunnel; `check_ingress` turns the answers round.
 *
 * The path is stored with the socket and not under a mark: no range of marks has to be reserved, two processes cannot
 * mix up their checks, and the entry ends with the connection.
 */
#include "wire/kernel.h"
#include "check/encapsulate.h"
#include "check/hand_over.h"
#include "check/inner.h"
#include "check/path.h"
#include "check/translate.h"

#define MACS_LENGTH (2 * ETH_ALEN)

/* A packet that cannot take its path is dropped: by another it would check another server. */
SEC("tc")
int check_egress(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk, *full = sk ? bpf_sk_fullsock(sk) : 0;
	struct inner inner = {};
	struct check_path *path;

	path = full ? bpf_sk_storage_get(&paths, full, 0, 0) : 0;
	if (!path || !read_inner(skb, path, &inner))
		return TC_CONTINUE;
	__sync_fetch_and_add(&path->packets, 1);
	note_echo(skb, path, &inner);
	if (translate(skb, path, &inner))
		return TC_DROP;
	if (path->forward == CHECK_HERE)
		return TC_CONTINUE;
	if (path->by_xdp && is_first(skb, path, &inner)) {
		hand_over(skb, path, &inner);
		return TC_DROP;
	}
	if (path->by_xdp == CHECK_BY_XDP_DIRECT)
		return TC_CONTINUE;
	if (path->forward != CHECK_L2 && encapsulate(skb, path, &inner))
		return TC_DROP;
	if (bpf_skb_store_bytes(skb, 0, path->destination_mac, MACS_LENGTH, 0))
		return TC_DROP;
	if (path->vlan && !skb->vlan_present && bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), path->vlan))
		return TC_DROP;
	return path->ifindex == skb->ifindex ? TC_CONTINUE : bpf_redirect(path->ifindex, 0);
}

SEC("tc")
int check_ingress(struct __sk_buff *skb)
{
	translate_back(skb);
	return TC_CONTINUE;
}
