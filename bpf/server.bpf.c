/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* server.bpf.c - a server's side of Ballast: take in what the load balancer sends, and make every TCP connection carry
 * its own way home. Applications and the kernel's TCP see nothing of it.
 *
 *   server_xdp:      decapsulate -> mine? -> deliver | hand to the next stop
 *   server_ingress:  restore TSecr
 *   server_egress:   write the cookie into TSval
 *   count_live:      how many connections services with dispatch choices have
 */
#include "wire/kernel.h"
#include "wire/checksum.h"
#include "wire/siphash.h"
#include "wire/timestamp.h"
#include "wire/parse.h"
#include "wire/reversed.h"
#include "wire/mix.h"
#include "wire/gue.h"
#include "wire/srh.h"
#include "wire/cookie.h"
#include "wire/syn_cookie.h"
#include "wire/history.h"
#include "server/agent.h"
#include "server/tunnel/tunnel_sources.h"
#include "wire/link_header.h"
#include "server/flow/flow.h"
#include "server/socket/socket.h"
#include "server/timestamp/hold_back.h"
#include "wire/choices.h"
#include "server/accept/acceptance.h"
#include "server/timestamp/column.h"
#include "server/timestamp/mark.h"
#include "server/timestamp/rewrite.h"
#include "server/timestamp/begin.h"
#include "server/timestamp/renew.h"
#include "server/timestamp/translated.h"
#include "server/timestamp/orphan.h"
#include "server/takeover/refused.h"
#include "server/takeover/take_over.h"
#include "server/takeover/reset_old.h"
#include "wire/tunnel.h"
#include "wire/decapsulate.h"
#include "server/tunnel/forward.h"
#include "server/accept/deliver.h"
#include "server/accept/accept.h"
#include "server/accept/live.h"

/* Functions off the common path are not inlined: packets meet cold caches, and the common path shall be short. */

/* A connection request: the packet that completes the handshake passes here. */
static __noinline enum agent_verdict restore_request(struct bpf_sock *sk, const struct served *served, const struct flow *f,
						 __u32 *restored)
{
	const struct tcp_request_sock *request = socket_address(sk);
	struct exception exception = { .unmarked = 1, .handshake_echo = f->echo };
	struct bpf_sock *listener;
	struct flow_key key;
	__u32 w = bpf_ntohl(f->echo), last = request_last(request);

	if (request_was_unmarked(request, last, w)) {
		if (rewritten_is(restored_request(f), f, f->echo))
			return INGRESS_RESTORED_BELOW;
		flow_key_fill(&key, f);
		bpf_map_update_elem(&exceptions, &key, &exception, BPF_ANY);
		return INGRESS_UNMARKED;
	}
	if (mark_read_tag(served, f, w) < 0)
		return INGRESS_BAD_COOKIE;
	*restored = mark_restore_request(last, served, w);
	if (served->flags & SERVED_HISTORY) {
		if (last - *restored > COLUMN_ECHO_MS)
			return INGRESS_BAD_COOKIE;
		column_note(f, w);
	}
	listener = bpf_get_listener_sock(sk);
	if (listener)
		bpf_sk_storage_get(&hold_backs, listener, 0, BPF_SK_STORAGE_GET_F_CREATE);
	rewritten_note(restored_request(f), f, bpf_htonl(*restored));
	return INGRESS_RESTORED_REQUEST;
}

/* A SYN cookie comes back. The kernel keeps options in the low bits of its timestamp, and asks for no more of it. */
static __noinline enum agent_verdict restore_syn_cookie(struct __sk_buff *skb, struct bpf_sock *sk, const struct served *served,
						    const struct flow *f, __u32 *restored)
{
	struct bpf_sock *listener = bpf_get_listener_sock(sk);
	__u32 w = bpf_ntohl(f->echo);
	_Bool ours;

	if (served->flags & SERVED_HISTORY)
		ours = !rewritten_is(restored_request(f), f, f->echo) && answers_syn_cookie(skb, sk, f);
	else
		ours = mark_read_tag(served, f, w) >= 0;
	if (!ours)
		return rewritten_is(restored_request(f), f, f->echo) ? INGRESS_RESTORED_BELOW : INGRESS_BAD_COOKIE;
	if (served->flags & SERVED_HISTORY)
		column_note(f, w);
	if (listener)
		bpf_sk_storage_get(&hold_backs, listener, 0, BPF_SK_STORAGE_GET_F_CREATE);
	*restored = w >> (served->cookie_bits & 31);
	rewritten_note(restored_request(f), f, bpf_htonl(*restored));
	return INGRESS_RESTORED_SYN_COOKIE;
}

static __noinline enum agent_verdict restore_time_wait(struct bpf_sock *sk, const struct served *served,
						   const struct flow *f, __u32 *restored)
{
	const struct tcp_timewait_sock *socket = socket_address(sk);
	const struct exception *exception;
	struct flow_key key;
	__u32 now, delta = START_DELTA, w = bpf_ntohl(f->echo);

	if (mark_read_tag(served, f, w) < 0)
		return INGRESS_BAD_COOKIE;
	flow_key_fill(&key, f);
	exception = bpf_map_lookup_elem(&exceptions, &key);
	if (exception) {
		if (exception->unmarked)
			return INGRESS_UNMARKED;
		delta = exception->delta;
	}
	if (served->flags & SERVED_HISTORY)
		column_note(f, w);
	now = socket_clock_ms() + BPF_CORE_READ(socket, tw_ts_offset) - delta + CLOCK_SLACK_MS;
	*restored = delta + hold_back_extend(w >> (served->cookie_bits & 31), now, served->cookie_bits);
	return INGRESS_RESTORED_TIME_WAIT;
}

static __noinline enum agent_verdict restore_unmarked(struct __sk_buff *skb, struct bpf_sock *sk, const struct served *served, const struct flow *f)
{
	enum agent_verdict verdict = AGENT_CONTINUE;

	if (served && served->flags & SERVED_TAKES_OVER)
		verdict = reset_old(skb, sk, served, f);
	return verdict == AGENT_CONTINUE ? INGRESS_UNMARKED : verdict;
}

inline_always enum agent_verdict restore_connection(struct __sk_buff *skb, struct bpf_sock *sk, const struct served *served,
						    const struct flow *f, __u32 *restored)
{
	struct bpf_sock *full = bpf_sk_fullsock(sk);
	__u32 w = bpf_ntohl(f->echo);
	enum agent_verdict verdict;
	struct hold_back *h;

	h = full ? bpf_sk_storage_get(&hold_backs, full, 0, 0) : 0;
	if (!h && full && begins_with(socket_address(full), served, f, w))
		h = bpf_sk_storage_get(&hold_backs, full, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!h)
		return restore_unmarked(skb, sk, served, f);
	if (h->state == HOLD_BACK_NEW) {
		const struct tcp_sock *tcp = socket_address(sk);

		if (served->flags & SERVED_HISTORY && echoes_handshake(tcp, served, w))
			column_note(f, w);
		mark_start(h, served, f, tcp, socket_clock_ms() + BPF_CORE_READ(tcp, tsoffset));
	}
	if (h->state != HOLD_BACK_MARKED)
		return restore_unmarked(skb, sk, served, f);
	if (hold_back_cookie(h, w) != h->cookie && !mark_adopt(h, served, f, w)) {
		verdict = restore_beginning(skb, sk, served, f, restored);
		return verdict == AGENT_CONTINUE ? INGRESS_BAD_COOKIE : verdict;
	}
	*restored = hold_back_restore(h, w);
	return INGRESS_RESTORED;
}

/* Without timestamps: a load balancer may have begun the connection. */
static __noinline enum agent_verdict restore_nothing(struct __sk_buff *skb, const struct served *served, struct flow *f)
{
	enum agent_verdict verdict = AGENT_CONTINUE;
	struct bpf_sock *sk;
	__u32 unused;

	if (!(f->tcp_flags & TCP_FLAG_ACK_BIT))
		return INGRESS_NO_TIMESTAMP;
	sk = socket_find(skb, f->client, &f->key, f->client_port);
	if (!sk)
		return INGRESS_NO_TIMESTAMP;
	if (sk->state == SOCKET_LISTEN)
		verdict = take_over(skb, sk, served, f, &unused);
	else if (sk->state == SOCKET_TIME_WAIT)
		verdict = reset_old(skb, sk, served, f);
	bpf_sk_release(sk);
	return verdict == AGENT_CONTINUE ? INGRESS_NO_TIMESTAMP : verdict;
}

inline_always enum agent_verdict restore(struct __sk_buff *skb)
{
	const struct served *served;
	struct flow f = {};
	enum agent_verdict verdict;
	struct bpf_sock *sk;
	_Bool connected = 0;
	__u32 restored = 0;

	if (skb->pkt_type != 0 /* PACKET_HOST */ || !flow_parse(&f, skb, FROM_CLIENT))
		return INGRESS_NOT_SERVED;
	served = served_find(&f.key);
	if (!served || !served->flags)
		return INGRESS_NOT_SERVED;
	if (flow_find_timestamp(&f, skb) != TIMESTAMP_FOUND)
		return served->flags & SERVED_SESSION ? restore_nothing(skb, served, &f) : INGRESS_NO_TIMESTAMP;
	if (!f.echo || !(f.tcp_flags & TCP_FLAG_ACK_BIT))
		return INGRESS_NO_ECHO;
	if (rewritten_before(skb, &f, FROM_CLIENT))
		return INGRESS_RESTORED_BELOW;
	sk = socket_find(skb, f.client, &f.key, f.client_port);
	if (!sk) {
		verdict = restore_translated(served, &f, &restored);
		connected = verdict != INGRESS_NO_SOCKET;
		goto out;
	}
	if (sk->state == SOCKET_NEW_SYN_RECV) {
		verdict = served->flags & SERVED_TAKES_OVER && echoes_beginning(served, &f) ? reset_old(skb, sk, served, &f) : AGENT_CONTINUE;
		if (verdict == AGENT_CONTINUE)
			verdict = restore_request(sk, served, &f, &restored);
	} else if (sk->state == SOCKET_LISTEN && served->flags & SERVED_TAKES_OVER && (verdict = take_over(skb, sk, served, &f, &restored)) != AGENT_CONTINUE) {
		connected = 1;
	} else if (sk->state == SOCKET_LISTEN) { /* which need not be who gets it */
		verdict = restore_translated(served, &f, &restored);
		connected = verdict != INGRESS_NO_SOCKET;
		if (!connected)
			verdict = restore_syn_cookie(skb, sk, served, &f, &restored);
	} else if (sk->state == SOCKET_TIME_WAIT) {
		connected = 1;
		if (served->flags & SERVED_TAKES_OVER && echoes_beginning(served, &f)) {
			verdict = reset_old(skb, sk, served, &f);
			if (verdict == AGENT_CONTINUE)
				verdict = INGRESS_DROPPED_BEFORE;
		} else {
			verdict = restore_time_wait(sk, served, &f, &restored);
		}
	} else {
		connected = 1;
		verdict = restore_connection(skb, sk, served, &f, &restored);
	}
	bpf_sk_release(sk);
out:
	if (verdict >= INGRESS_RESTORED_REQUEST && verdict <= INGRESS_RESTORED_TRANSLATED)
		rewrite(skb, &f, FROM_CLIENT, bpf_htonl(restored));
	if (!connected && (verdict == INGRESS_NO_SOCKET || verdict == INGRESS_BAD_COOKIE) && is_first_orphan(skb, served, &f))
		return INGRESS_DROPPED_STRAY;
	return verdict;
}

inline_always enum agent_verdict no_timestamp(const struct flow *f)
{
	return f->search == TIMESTAMP_AUTHENTICATED ? EGRESS_UNMARKED_AUTHENTICATED :
	       f->tcp_flags & TCP_FLAG_RST_BIT	    ? EGRESS_RESET_NO_TIMESTAMP :
						      EGRESS_NO_TIMESTAMP;
}

/* With a socket and its storage nothing else has to be looked up. */
inline_always enum agent_verdict mark_connection(struct __sk_buff *skb, struct flow *f, struct bpf_sock *full,
						 struct hold_back *h)
{
	__u32 t, w, now = current_generation(), delta;
	_Bool held = 0, unknown = 0;

	if (flow_find_timestamp(f, skb) != TIMESTAMP_FOUND)
		return no_timestamp(f);
	if (rewritten_before(skb, f, TO_CLIENT))
		return EGRESS_MARKED_ABOVE;
	t = bpf_ntohl(f->value);
	if (h->state != HOLD_BACK_MARKED || h->generation != now) {
		const struct served *served = served_find(&f->key);

		if (h->state == HOLD_BACK_NEW) {
			if (!served || !served->flags)
				return EGRESS_NOT_SERVED;
			unknown = mark_start(h, served, f, socket_address(full), t) == COLUMN_UNKNOWN;
		} else if (h->state == HOLD_BACK_MARKED) {
			mark_refresh(h, served, f, now, t);
		}
		if (h->state != HOLD_BACK_MARKED) {
			if (f->tcp_flags & TCP_FLAG_FIN_BIT)
				mark_remember(f, 0, 1);
			return h->state == HOLD_BACK_UNMARKED_USEC ? EGRESS_UNMARKED_USEC :
								     EGRESS_UNMARKED_OLDER_THAN_AGENT;
		}
	}
	w = hold_back_forward(h, t, &held) << (h->cookie_bits & 31) | h->cookie;
	delta = h->delta;
	if (f->tcp_flags & TCP_FLAG_FIN_BIT ||
	    (held && (full->state == SOCKET_FIN_WAIT1 || full->state == SOCKET_FIN_WAIT2 || full->state == SOCKET_CLOSING)))
		mark_remember(f, delta, 0);
	rewrite(skb, f, TO_CLIENT, bpf_htonl(w));
	if ((h->behind || h->generation != now) && renew(skb, f, full))
		return EGRESS_MARKED_RENEWED;
	if (unknown)
		return EGRESS_MARKED_UNKNOWN_COLUMN;
	return f->tcp_flags & TCP_FLAG_SYN_BIT ? EGRESS_MARKED_SYN_ACK : held ? EGRESS_MARKED_HELD_BACK : EGRESS_MARKED;
}

/* SYN-ACKs, SYN cookies, and answers for requests and TIME_WAIT: the clock alone, unless something is remembered. */
static __noinline enum agent_verdict mark_without_storage(struct __sk_buff *skb, struct flow *f, const struct served *served,
						      struct bpf_sock *sk)
{
	int column = served->flags & SERVED_HISTORY ? column_find(f) : 0;
	enum agent_verdict verdict = column < 0 ? EGRESS_MARKED_UNKNOWN_COLUMN : EGRESS_MARKED_SYN_ACK;
	__u32 v = bpf_ntohl(f->value), cookie = mark_cookie(served, f, served->epoch_parity, column < 0 ? 0 : column);

	if (!(f->tcp_flags & TCP_FLAG_SYN_BIT)) {
		const struct exception *exception;
		__u32 delta = START_DELTA;
		struct flow_key key;

		verdict = EGRESS_MARKED_NO_SOCKET;
		flow_key_fill(&key, f);
		exception = bpf_map_lookup_elem(&exceptions, &key);
		if (exception && exception->unmarked)
			return EGRESS_UNMARKED_OLDER_THAN_AGENT;
		if (exception)
			delta = exception->delta;
		v -= delta;
		/* The connection's cookie may be greater than this one: a V newer than its last. */
		if (!sk || (sk->state != SOCKET_LISTEN && sk->state != SOCKET_NEW_SYN_RECV))
			v++;
	} else if (sk && sk->state == SOCKET_NEW_SYN_RECV && request_uses_usec(socket_address(sk))) {
		return EGRESS_UNMARKED_USEC;
	}
	if (!(v << (served->cookie_bits & 31) | cookie))
		v++;
	rewrite(skb, f, TO_CLIENT, bpf_htonl(v << (served->cookie_bits & 31) | cookie));
	return verdict;
}

inline_always enum agent_verdict mark(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk, *full = sk ? bpf_sk_fullsock(sk) : 0;
	const struct served *served;
	enum agent_verdict verdict;
	struct hold_back *h = 0;
	struct flow f = {};

	if (!flow_parse(&f, skb, TO_CLIENT))
		return EGRESS_NOT_SERVED;
	/* Answers for connection requests are sent by the listener. Its storage is for the connections. */
	if (full && full->state == SOCKET_LISTEN)
		full = 0;
	if (full)
		h = bpf_sk_storage_get(&hold_backs, full, 0, 0);
	/* A child of a redirect onto a listener of ours has its storage, but the flow has its own. An RST leaves after its socket has
	 * given its port back. */
	if (h && (full->src_port == bpf_ntohs(f.key.port) || (!full->src_port && h->state == HOLD_BACK_MARKED)))
		return mark_connection(skb, &f, full, h);
	served = served_find(&f.key);
	if (!served || !(served->flags & (f.tcp_flags & TCP_FLAG_SYN_BIT ? SERVED_COOKIE : SERVED_COOKIE | SERVED_RETIRED)))
		return EGRESS_NOT_SERVED;
	if (flow_find_timestamp(&f, skb) != TIMESTAMP_FOUND) {
		verdict = no_timestamp(&f);
		if (verdict == EGRESS_RESET_NO_TIMESTAMP && served->flags & SERVED_TAKES_OVER && (!full || full->type != SOCKET_TYPE_STREAM) &&
		    was_taken_over(skb, served, &f))
			return EGRESS_RESET_TAKEN_OVER;
		return verdict;
	}
	if (rewritten_before(skb, &f, TO_CLIENT))
		return is_renewing() ? EGRESS_COPIED : EGRESS_MARKED_ABOVE;
	if (is_translated(skb, &f, sk, full) || (!sk && f.tcp_flags & TCP_FLAG_SYN_BIT && is_translated_cookie(skb, &f))) {
		if (h) /* its listener's, as the kernel copied it */
			h->state = HOLD_BACK_TRANSLATED;
		if (!(f.tcp_flags & TCP_FLAG_SYN_BIT))
			return mark_translated(skb, &f, served);
		translated_handshake(&f);
		return mark_without_storage(skb, &f, served, 0);
	}
	/* The kernel's own sockets, which answer for TIME_WAIT before 6.13, are raw. */
	if (!full || full->type != SOCKET_TYPE_STREAM)
		return mark_without_storage(skb, &f, served, sk);
	if (!(f.tcp_flags & TCP_FLAG_SYN_BIT) && !begins_now(socket_address(full), served, bpf_ntohl(f.value), skb->gso_segs)) {
		if (f.tcp_flags & TCP_FLAG_FIN_BIT)
			mark_remember(&f, 0, 1);
		return EGRESS_UNMARKED_OLDER_THAN_AGENT;
	}
	/* Another listener's child; or TCP Fast Open: the connection is there before its SYN-ACK. */
	h = bpf_sk_storage_get(&hold_backs, full, 0, BPF_SK_STORAGE_GET_F_CREATE);
	return h ? mark_connection(skb, &f, full, h) : EGRESS_NOT_SERVED;
}

/* Is the tunnel ours: for this host's MAC and address, about something that this host serves? */
inline_always enum agent_verdict recognise(struct xdp_md *ctx, struct tunnel *t, struct packet *p, const __u32 **row)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 ifindex = ctx->ingress_ifindex, length = bpf_xdp_get_buff_len(ctx);
	const struct interface *interface;
	struct served_key key = {};
	enum tunnel_search search = tunnel_parse(t, data, end, 1);
	enum parse_result parsed;

	if (search == TUNNEL_ABSENT)
		return PASSED_NOT_TUNNELLED;
	interface = bpf_map_lookup_elem(&interfaces, &ifindex);
	if (!interface || __builtin_memcmp(interface->mac, data, sizeof(interface->mac)) ||
	    !bpf_map_lookup_elem(&own_addresses, t->destination) || search == TUNNEL_MALFORMED)
		return PASSED_FOREIGN_TUNNEL;
	p->l3 = t->inner & 255;
	parsed = t->inner_ipv6 ? parse_ipv6(p, data, end) : parse_ipv4(p, data, end);
	if (parsed == PARSED)
		parsed = p->l3 + p->length > length || p->l4 - p->l3 > p->length ? PARSE_MALFORMED :
										   parse_ports(p, data, end);
	if (parsed == PARSE_MALFORMED)
		return DROPPED_MALFORMED_TUNNEL;
	__builtin_memcpy(key.address, p->destination, sizeof(key.address));
	key.ipv6 = p->ipv6;
	key.port = p->destination_port;
	key.protocol = p->destination_port ? p->protocol : 0;
	if (parsed != PARSED || !(*row = bpf_map_lookup_elem(&served_rows, &key)))
		return PASSED_FOREIGN_TUNNEL;
	if (!tunnel_lengths_agree(t, p, data, end))
		return DROPPED_MALFORMED_TUNNEL;
	return tunnel_accept(t->source) ? AGENT_CONTINUE : DROPPED_FOREIGN_SOURCE;
}

/* AGENT_CONTINUE: a packet with stops stays here. */
inline_always enum agent_verdict stop_here(struct xdp_md *ctx, const struct tunnel *t, const struct packet *p, const struct served *served,
					   enum agent_verdict *delivered, int *action)
{
	_Bool choices = served && served->flags & SERVED_CHOICES, is_new = choices && deliver_is_syn(p);
	enum agent_verdict verdict;

	*delivered = is_new ? accepted_at(t->column) : DECAPSULATED_MINE;
	if (is_new ? accept_takes(ctx, t, p, served) : deliver_is_mine(ctx, p))
		return AGENT_CONTINUE;
	if (!is_new)
		*delivered = DECAPSULATED_LAST;
	if (choices && !tunnel_known(t->source)) /* nobody has a server relay for him */
		return AGENT_CONTINUE;
	verdict = forward_tunnel(ctx, t, action);
	if (!is_new)
		return verdict;
	return verdict == HANDED_ON ? passed_on_at(t->column) : verdict == DROPPED_MALFORMED_TUNNEL ? verdict : AGENT_CONTINUE;
}

inline_always enum agent_verdict handle_tunnel(struct xdp_md *ctx, int *action)
{
	enum agent_verdict verdict, delivered = DECAPSULATED;
	const struct served *served;
	const __u32 *row = 0;
	struct tunnel t = {};
	struct packet p = {};

	*action = XDP_PASS;
	verdict = recognise(ctx, &t, &p, &row);
	if (verdict == AGENT_CONTINUE && row && (t.stops || deliver_is_syn(&p))) {
		served = bpf_map_lookup_elem(&served_services, row);
		if (t.stops)
			verdict = stop_here(ctx, &t, &p, served, &delivered, action);
		if (verdict == AGENT_CONTINUE && deliver_is_syn(&p))
			mark_accepted(&p, served, t.column);
	}
	if (verdict != AGENT_CONTINUE)
		return verdict;
	if (!tunnel_copy_congestion(&t, (void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return DROPPED_CONGESTED;
	return tunnel_strip(ctx, &t) ? delivered : DROPPED_MALFORMED_TUNNEL;
}

SEC("xdp.frags")
int server_xdp(struct xdp_md *ctx)
{
	__u32 length = bpf_xdp_get_buff_len(ctx);
	int action;
	enum agent_verdict verdict = handle_tunnel(ctx, &action);

	agent_count(verdict, length);
	return verdict >= DROPPED_MALFORMED_TUNNEL && verdict <= DROPPED_CONGESTED ? XDP_DROP : action;
}

SEC("tc")
int server_ingress(struct __sk_buff *skb)
{
	enum agent_verdict verdict = restore(skb);

	agent_count(verdict, skb->len);
	return verdict >= INGRESS_NOT_TAKEN_OVER && verdict <= INGRESS_DROPPED_STRAY ? TC_DROP : TC_CONTINUE;
}

SEC("tc")
int server_egress(struct __sk_buff *skb)
{
	agent_count(mark(skb), skb->len);
	return TC_CONTINUE;
}

SEC("tp_btf/inet_sock_set_state")
int count_live(__u64 *ctx)
{
	live_count((const struct sock *)ctx[0], ctx[1], ctx[2]);
	return 0;
}

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__tcp {
	__bpf_md_ptr(struct bpf_iter_meta *, meta);
	__bpf_md_ptr(struct sock_common *, sk_common);
};

/* Walks the TCP sockets of this network namespace and writes for each living connection with a cookie one byte: the parity of the
 * epoch that its client has echoed last. By the sockets and not by hold_backs: some kernels refuse iterators of storage (EPERM). */
SEC("iter/tcp")
int count_echoes(struct bpf_iter__tcp *ctx)
{
	struct tcp_sock *tcp = ctx->sk_common ? bpf_skc_to_tcp_sock(ctx->sk_common) : 0;
	struct sock *sk = (void *)tcp;
	const struct hold_back *h;
	const struct served *served;
	struct served_key key = {};
	const struct turn *last;
	__u64 now_ns = bpf_ktime_get_ns();
	__u32 zero = 0, t;
	__u8 parity;

	if (!tcp || sk->__sk_common.skc_state == SOCKET_LISTEN || sk->__sk_common.skc_state == SOCKET_CLOSE)
		return 0;
	h = bpf_sk_storage_get(&hold_backs, tcp, 0, 0);
	if (!h)
		return 0;
	if (h->state == HOLD_BACK_MARKED) {
		if (h->cookie_bits == HISTORY_BITS) /* no key */
			return 0;
		parity = (h->cookie >> ((h->cookie_bits - 1) & 31) & 1) ^ h->behind;
	} else if (h->state == HOLD_BACK_NEW && BPF_CORE_READ_BITFIELD_PROBED(tcp, rx_opt.tstamp_ok)) {
		last = bpf_map_lookup_elem(&last_turn, &zero);
		if (!last)
			return 0;
		live_key(&key, sk);
		served = served_find(&key);
		if (served && served->flags & SERVED_HISTORY)
			return 0;
		t = now_ns / 1000000 + BPF_CORE_READ(tcp, tsoffset);
		parity = last->parity ^ sent_before_turn(handshake_echo(tcp, now_ns, t, COOKIE_BITS_MAX), now_ns, t);
	} else {
		return 0;
	}
	bpf_seq_write(ctx->meta->seq, &parity, sizeof(parity));
	return 0;
}
