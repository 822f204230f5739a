/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* column.h - affinity history (SHELL III-C): the column that a connection was accepted in, until its socket's storage
 * knows it.
 *
 * The SYN's tunnel tells it; the client tells it again with every echo. Departs from SHELL, whose servers keep no map:
 * the kernel writes SYN-ACKs, and nothing of a SYN's tunnel reaches them. A number for each handshake, and for answers
 * of TIME_WAIT.
 */
#pragma once

#include "wire/kernel.h"
#include "wire/history.h"
#include "wire/parse.h"
#include "server/agent.h"
#include "server/flow/flow.h"
#include "server/timestamp/hold_back.h"

/* Implementation constants */
#define COLUMN_UNKNOWN (-1)
#define COLUMN_ECHO_MS (1u << 18) /* a handshake's echo is not older: there is no key to tell who wrote it */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, __u32);
} columns SEC(".maps");

/* The key that programs at tc have for the flow of a packet in XDP. */
inline_always void flow_key_of_packet(struct flow_key *key, const struct packet *p)
{
	__builtin_memcpy(key->service.address, p->destination, 16);
	key->service.port = p->destination_port;
	key->service.protocol = IPPROTO_TCP;
	key->service.ipv6 = p->ipv6;
	__builtin_memcpy(key->client, p->source, 16);
	key->client_port = p->source_port;
}

/* This server answers a SYN. Also the first column is written: else a flow that was forgotten would look like one of
 * it. */
static __noinline int mark_accepted(const struct packet *p, const struct served *served, __u32 column)
{
	struct flow_key key = {};

	if (!p || !served || !(served->flags & SERVED_HISTORY))
		return 0;
	column = history_column(column);
	flow_key_of_packet(&key, p);
	bpf_map_update_elem(&columns, &key, &column, BPF_ANY);
	return 0;
}

/* COLUMN_UNKNOWN: forgotten, or no load balancer has sent the SYN. */
static __noinline int column_find(const struct flow *f)
{
	struct flow_key key;
	const __u32 *column;

	if (!f)
		return COLUMN_UNKNOWN;
	flow_key_fill(&key, f);
	column = bpf_map_lookup_elem(&columns, &key);
	return column ? *column : COLUMN_UNKNOWN;
}

/* A client's echo tells it. */
static __noinline int column_note(const struct flow *f, __u32 echo)
{
	__u32 column = history_column(echo);
	struct flow_key key;

	if (!f || column_find(f) == column)
		return 0;
	flow_key_fill(&key, f);
	bpf_map_update_elem(&columns, &key, &column, BPF_ANY);
	return 0;
}

/* Something else knows it now. */
static __noinline int column_forget(const struct flow *f)
{
	struct flow_key key;

	if (!f)
		return 0;
	flow_key_fill(&key, f);
	bpf_map_delete_elem(&columns, &key);
	return 0;
}

/* Without a key in its timestamp, an ACK's number tells whether it answers a SYN cookie. */
static __noinline int answers_syn_cookie(struct __sk_buff *skb, struct bpf_sock *listener, const struct flow *f)
{
	struct tcphdr tcp;
	struct ipv6hdr ip;

	if (!f || bpf_skb_load_bytes(skb, f->l4, &tcp, sizeof(tcp)))
		return 0;
	if (f->key.ipv6)
		return !bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(ip), BPF_HDR_START_NET) &&
		       !bpf_tcp_check_syncookie(listener, &ip, sizeof(ip), &tcp, sizeof(tcp));
	return !bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(struct iphdr), BPF_HDR_START_NET) &&
	       !bpf_tcp_check_syncookie(listener, &ip, sizeof(struct iphdr), &tcp, sizeof(tcp));
}
