// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* check.bpf.c - health checks take the path of traffic: from a socket of this host, addressed to the VIP, to one certain server.
 *
 * The prober connects to the VIP; the kernel routes that like anything else. Before the packets leave, `check_egress` finds in the
 * storage of their socket which server they are for and sends them there as the load balancer sends a client's: only the MAC
 * changed, or encapsulated. The server answers this host directly, as it answers clients.
 *
 * Where the load balancer's program runs in native mode, a driver may refuse what it redirects and transmit all that the kernel sends. So
 * SYNs, and the first datagrams of sockets, are handed to user space, which has the load balancer's program send them (lb/walk/check.h): a server
 * answers only if they arrive. These checks may also be addressed to the server itself.
 *
 * The path is stored with the socket and not under a mark: no range of marks has to be reserved, two processes cannot mix up their
 * checks, and the entry ends with the connection.
 */
#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/gue.h"

#define MACS_LENGTH (2 * ETH_ALEN)

enum check_forward { CHECK_L2, CHECK_IPIP, CHECK_GUE };

enum check_by_xdp { CHECK_BY_KERNEL, CHECK_BY_XDP, CHECK_BY_XDP_DIRECT };

/* How a check reaches its server. */
struct check_path {
	__be32 vip[4]; /* where the socket is connected to; the server's own address, if direct */
	__be32 address[4]; /* of the server */
	__be32 source[4]; /* outer source */
	__u8 destination_mac[6];
	__u8 source_mac[6];
	__u32 ifindex;
	__u16 vlan; /* 802.1Q id in host order, 0: untagged */
	__u8 forward; /* enum check_forward */
	__u8 outer_ipv6;
	__u32 service; /* its number in the load balancer's tables */
	__u16 id; /* of the server */
	__u8 by_xdp; /* enum check_by_xdp */
	__u8 pad;
	__u32 packets; /* sent on this path: 0 means that the kernel routes them past this program */
	__u32 echoes; /* of them: those that echo a timestamp of the server */
	__u32 echo; /* the newest of these */
};
_Static_assert(sizeof(struct check_path) == 88, "check_path");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct check_path);
} paths SEC(".maps");

#define HANDED_MOST 2048 /* bytes of a packet */

/* A packet that the load balancer's program is to send. Checksums may be those that the kernel leaves to a device. */
struct check_handed {
	__u32 service;
	__u16 id;
	__u8 direct, ipv6;
	__u32 length;
	__u8 packet[HANDED_MOST];
};
_Static_assert(sizeof(struct check_handed) == 12 + HANDED_MOST, "check_handed");
struct check_handed *unused_handed __attribute__((unused)); /* keeps it in BTF for user space */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 19);
} handed SEC(".maps");

/* The inner packet, as far as the outer header needs to know it. */
struct inner {
	__u32 length; /* of the packet */
	__u32 l4; /* offset of its TCP header */
	__u8 tos;
	__u8 transport;
	__u8 protocol; /* that stands for its family in an outer header */
};

/* Is the packet one to the VIP? Those that come by again, on the device they were sent on to, are not: they go to the server. */
inline_always _Bool read_inner(struct __sk_buff *skb, const struct check_path *path, struct inner *inner)
{
	inner->length = skb->len - ETH_HLEN;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return 0;
		inner->tos = ip.tos;
		inner->transport = ip.protocol;
		inner->protocol = IPPROTO_IPIP;
		inner->l4 = ETH_HLEN + ip.ihl * 4;
		return ip.daddr == path->vip[0];
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return 0;
		inner->tos = ip.priority << 4 | ip.flow_lbl[0] >> 4;
		inner->transport = ip.nexthdr;
		inner->protocol = IPPROTO_IPV6;
		inner->l4 = ETH_HLEN + sizeof(ip);
		return !__builtin_memcmp(&ip.daddr, path->vip, sizeof(path->vip));
	}
	return 0;
}

/* The kernel echoes the server's timestamp, which carries the server's cookie. In all but SYNs it writes the option first. */
inline_always void note_echo(struct __sk_buff *skb, struct check_path *path, const struct inner *inner)
{
	struct {
		struct tcphdr tcp;
		__be32 kind, value, echo;
	} head;

	if (bpf_skb_load_bytes(skb, inner->l4, &head, sizeof(head)) || head.tcp.syn || !head.tcp.ack ||
	    head.tcp.doff * 4 < sizeof(head) || head.kind != bpf_htonl(0x0101080a)) /* NOP NOP TS */
		return;
	path->echo = bpf_ntohl(head.echo);
	__sync_fetch_and_add(&path->echoes, 1);
}

/* Writes the outer headers of the path into the room made for them. */
inline_always long write_outer_ipv4(struct __sk_buff *skb, const struct check_path *path, const struct inner *inner, __u8 protocol,
				    __u32 outer)
{
	struct iphdr ip;

	write_ipv4_header(&ip, inner->tos, inner->length + outer, 0, 1, protocol, path->source[0], path->address[0]);
	return bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0);
}

inline_always long write_outer_ipv6(struct __sk_buff *skb, const struct check_path *path, const struct inner *inner, __u8 protocol,
				    __u32 outer, __u16 entropy)
{
	struct ipv6hdr ip = {};

	*(__be32 *)&ip = bpf_htonl(6u << 28 | (__u32)inner->tos << 20 | entropy);
	ip.payload_len = bpf_htons(inner->length + outer - sizeof(ip));
	ip.nexthdr = protocol;
	ip.hop_limit = 64;
	__builtin_memcpy(&ip.saddr, path->source, 16);
	__builtin_memcpy(&ip.daddr, path->address, 16);
	return bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0);
}

inline_always long write_gue(struct __sk_buff *skb, const struct inner *inner, __u32 ip_length, __u16 entropy)
{
	struct {
		struct udphdr udp;
		struct gue_header gue;
	} headers = {
		.udp.source = bpf_htons(GUE_SOURCE_PORT_BASE | (entropy & 0x3fff)),
		.udp.dest = bpf_htons(GUE_PORT),
		.udp.len = bpf_htons(inner->length + sizeof(headers)), /* no checksum: RFC 6935, as lb/send/encapsulate.h */
		.gue.protocol = inner->protocol,
	};

	return bpf_skb_store_bytes(skb, ETH_HLEN + ip_length, &headers, sizeof(headers), 0);
}

/* 0, or the packet cannot be sent. */
inline_always long encapsulate(struct __sk_buff *skb, const struct check_path *path, const struct inner *inner)
{
	__u32 ip_length = path->outer_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr), outer = ip_length;
	/* Segments keep their size: the prober has made it small enough. */
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | (path->outer_ipv6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4);
	__be16 protocol = path->outer_ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	__u16 entropy = bpf_get_hash_recalc(skb) >> 16;
	_Bool gue = path->forward == CHECK_GUE;

	if (gue) {
		outer += sizeof(struct udphdr) + sizeof(struct gue_header);
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	}
	if (bpf_skb_adjust_room(skb, outer, BPF_ADJ_ROOM_MAC, flags))
		return -1;
	if (gue && write_gue(skb, inner, ip_length, entropy))
		return -1;
	if (bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &protocol, sizeof(protocol), 0))
		return -1;
	return path->outer_ipv6 ? write_outer_ipv6(skb, path, inner, gue ? IPPROTO_UDP : inner->protocol, outer, entropy) :
				 write_outer_ipv4(skb, path, inner, gue ? IPPROTO_UDP : inner->protocol, outer);
}

/* Is it one that a server must have got to answer anything? */
inline_always _Bool is_first(struct __sk_buff *skb, const struct check_path *path, const struct inner *inner)
{
	struct tcphdr tcp;

	if (inner->transport != IPPROTO_TCP)
		return path->packets == 1;
	return !bpf_skb_load_bytes(skb, inner->l4, &tcp, sizeof(tcp)) && tcp.syn;
}

/* What finds no room in the ring is lost like any packet. */
inline_always void hand_over(struct __sk_buff *skb, const struct check_path *path, const struct inner *inner)
{
	struct check_handed *to = bpf_ringbuf_reserve(&handed, sizeof(*to), 0);
	__u32 last = inner->length - 1;

	if (!to)
		return;
	to->service = path->service;
	to->id = path->id;
	to->direct = path->by_xdp == CHECK_BY_XDP_DIRECT;
	to->ipv6 = inner->protocol == IPPROTO_IPV6;
	to->length = inner->length;
	asm volatile("" : "+r"(last));
	if (last < HANDED_MOST && !bpf_skb_load_bytes(skb, ETH_HLEN, to->packet, last + 1))
		bpf_ringbuf_submit(to, 0);
	else
		bpf_ringbuf_discard(to, 0);
}

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
