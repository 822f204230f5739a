/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* segment.bpf.c - hosts of a segment find VIPs at the load balancer that owns them, by ARP and Neighbor Discovery, also
 * while its daemon is not there (RFC 826, RFC 4861).
 *
 * `segment_ingress` answers requests for the VIPs that this load balancer owns. Requests for those that another one
 * owns are kept from the host's stack, which answers ARP for addresses on `lo` as well. Program and maps are pinned.
 * Another load balancer gets no answer when the daemon has been gone for long, and takes the VIP (vips.h).
 */
#include "wire/kernel.h"
#include "segment/arp.h"
#include "segment/solicitation.h"

SEC("tc")
int segment_ingress(struct __sk_buff *skb)
{
	if (skb->pkt_type == PACKET_OTHERHOST)
		return TC_CONTINUE;
	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return answer_arp(skb);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return answer_solicitation(skb);
	return TC_CONTINUE;
}
