/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* take_over.h - session tls, syn_proxy: a load balancer has answered the client's SYN, and the first packet with data,
 * or with syn_proxy the acknowledgement before it, comes to this server: its kernel makes a connection of it, as of one
 * that has answered SYN cookies (Linux 6.9). The client goes on by the load balancer's timestamp, and so does this
 * server's clock. */
#pragma once

#include "wire/kernel.h"
#include "wire/cookie.h"
#include "wire/parse.h"
#include "wire/siphash.h"
#include "wire/syn_cookie.h"
#include "wire/timestamp.h"
#include "server/takeover/refused.h"
#include "server/agent.h"
#include "server/verdict.h"
#include "server/socket/socket.h"
#include "server/flow/flow.h"
#include "server/timestamp/column.h"
#include "server/timestamp/hold_back.h"
#include "server/timestamp/mark.h"
#include "server/timestamp/orphan.h"

/* include/net/tcp.h */
struct bpf_tcp_req_attrs {
	__u32 rcv_tsval, rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale, snd_wscale;
	__u8 ecn_ok, wscale_ok, sack_ok, tstamp_ok, usec_ts_ok;
	__u8 reserved[3];
};

extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk, struct bpf_tcp_req_attrs *attrs,
				   int attrs__sz) __ksym __weak;

struct tcp_numbers {
	__u32 sequence, acknowledged;
};

/* Where the IP header's length field is, if nothing else is between it and TCP: load balancers send nothing with IP
 * options on. */
inline_always __u32 segment_length_at(const struct flow *f)
{
	return f->key.ipv6 ? f->l4 - sizeof(struct ipv6hdr) + 4 : f->l4 - sizeof(struct iphdr) + 2;
}

/* Bytes of TCP's data, by the IP header: a short frame has others behind it. Super-packets of 64 KiB and more have a
 * length of 0. */
inline_always __u32 segment_payload(struct __sk_buff *skb, const struct flow *f)
{
	__be16 length = 0;

	bpf_skb_load_bytes(skb, segment_length_at(f), &length, sizeof(length));
	if (!length)
		return skb->len - f->l4 - f->header;
	return bpf_ntohs(length) - f->header - (f->key.ipv6 ? 0 : sizeof(struct iphdr));
}

/* Is the echo a load balancer's, of a connection that it begins? */
inline_always _Bool echoes_beginning(const struct served *served, const struct flow *f)
{
	__u32 w = bpf_ntohl(f->echo);

	return f->echo &&
	       !cookie_plain(w, mark_hash(served, f, cookie_epoch_parity(w, served->cookie_bits)), served->cookie_bits);
}

enum beginning {
	BEGINS_NOTHING, /* of another kind */
	BEGINS_UNPROVEN, /* a load balancer may have begun the connection, but it is not the first packet, or late */
	BEGINS_EMPTY, /* the acknowledgement of the load balancer's answer */
	BEGINS, /* the first packet with data, or FIN */
};

/* Does a connection come to be by it? */
inline_always _Bool is_beginning(const struct served *served, int beginning)
{
	return beginning == BEGINS || (beginning == BEGINS_EMPTY && served->flags & SERVED_PROXIED);
}

/* Has a load balancer sent the number? One of version 0.1 has hashed the client's sequence number. */
__noinline int is_answer(const struct served *served, const struct syn_cookie_flow *c, __u32 number)
{
	__u32 low = number & ((1 << SYN_COOKIE_LOW_BITS) - 1);
	struct siphash_state key;

	if (!served || !c)
		return 0;
	key = siphash_begin(&served->syn_cookie_key);
	return syn_cookie_is_good(&key, c, number) ||
	       (!syn_cookie_is_late(low) && syn_cookie_mac(&key, c, c->sequence, low) == number >> SYN_COOKIE_LOW_BITS);
}

/* Has a load balancer answered this client's SYN, lately, and is this what comes next? */
__noinline int begins(struct __sk_buff *skb, const struct served *served, const struct flow *f,
		      struct tcp_numbers *numbers)
{
	struct syn_cookie_flow c = {};
	__be32 words[2];

	if (!served || !f || !numbers || f->fragment ||
	    (f->tcp_flags & (TCP_FLAG_SYN_BIT | TCP_FLAG_RST_BIT | TCP_FLAG_ACK_BIT)) != TCP_FLAG_ACK_BIT ||
	    (f->search == TIMESTAMP_FOUND && !echoes_beginning(served, f)) ||
	    bpf_skb_load_bytes(skb, f->l4 + 4, words, sizeof(words)))
		return BEGINS_NOTHING;
	numbers->sequence = bpf_ntohl(words[0]);
	numbers->acknowledged = bpf_ntohl(words[1]);
	__builtin_memcpy(c.client, f->client, 16);
	c.client_port = f->client_port;
	c.service_port = f->key.port;
	c.timestamp = f->echo;
	c.ipv6 = f->key.ipv6;
	c.sequence = bpf_htonl(numbers->sequence - 1);
	if (!is_answer(served, &c, numbers->acknowledged - 1))
		return BEGINS_UNPROVEN;
	return segment_payload(skb, f) || f->tcp_flags & TCP_FLAG_FIN_BIT ? BEGINS : BEGINS_EMPTY;
}

/* For a listener's socket. AGENT_CONTINUE: the packet is of another kind. *restored: its TSecr, as the connection's
 * kernel will have written it. */
static __noinline enum agent_verdict take_over(struct __sk_buff *skb, struct bpf_sock *listener,
					       const struct served *served, const struct flow *f, __u32 *restored)
{
	struct bpf_tcp_req_attrs attrs = { .rcv_wscale = served->session_scale };
	_Bool timestamps = f->search == TIMESTAMP_FOUND;
	struct tcp_numbers numbers = {};
	struct tcp_sock *tcp;
	__u32 number;
	int beginning;

	beginning = begins(skb, served, f, &numbers);
	if (beginning == BEGINS_NOTHING)
		return AGENT_CONTINUE;
	if (beginning == BEGINS_UNPROVEN) { /* the kernel would answer with RST. Without timestamps it may be of a
					       connection that ended long ago, or that this kernel has begun */
		if (!timestamps && served->flags & SERVED_PROXIED && answers_syn_cookie(skb, listener, f))
			return AGENT_CONTINUE;
		return timestamps || is_early(served, f) ? INGRESS_DROPPED_BEFORE : AGENT_CONTINUE;
	}
	if (!is_beginning(served, beginning)) /* what load balancers drop as well */
		return INGRESS_DROPPED_BEFORE;
	number = numbers.acknowledged - 1;
	attrs.mss = syn_cookie_mss[number >> SYN_COOKIE_MSS_SHIFT & 7];
	if (f->key.ipv6 && attrs.mss < syn_cookie_mss[1]) /* which the kernel refuses: RFC 8200 5 promises it */
		attrs.mss = syn_cookie_mss[1];
	attrs.snd_wscale = number & SYN_COOKIE_SCALE;
	attrs.wscale_ok = attrs.snd_wscale != SYN_COOKIE_SCALE;
	if (!attrs.wscale_ok)
		attrs.snd_wscale = attrs.rcv_wscale = 0;
	attrs.sack_ok = !!(number & SYN_COOKIE_SACK);
	attrs.ecn_ok = !!(number & SYN_COOKIE_ECN);
	if (timestamps) {
		*restored = bpf_ntohl(f->echo) >> (served->cookie_bits & 31);
		attrs.tstamp_ok = 1;
		attrs.rcv_tsval = bpf_ntohl(f->value);
		attrs.rcv_tsecr = *restored;
	}
	tcp = bpf_skc_to_tcp_sock(listener);
	if (!tcp || !bpf_sk_assign_tcp_reqsk)
		return INGRESS_NOT_TAKEN_OVER;
	bpf_sk_storage_get(&hold_backs, tcp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (bpf_sk_assign_tcp_reqsk(skb, (struct sock *)tcp, &attrs, sizeof(attrs)))
		return INGRESS_NOT_TAKEN_OVER;
	note_taken(served, f, numbers.acknowledged);
	return timestamps ? INGRESS_TAKEN_OVER : INGRESS_TAKEN_OVER_UNMARKED;
}
