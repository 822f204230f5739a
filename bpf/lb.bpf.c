// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* lb.bpf.c - the load balancer: parse -> service -> steer -> send -> count. */
#include "kernel.h"

#include "packet/checksum.h"
#include "packet/siphash.h"
#include "packet/timestamp.h"
#include "packet/parse.h"
#include "packet/gue.h"
#include "packet/usual.h"
#include "packet/quote.h"
#include "packet/mix.h"

#include "state/verdict.h"
#include "state/service.h"
#include "state/rounds.h"
#include "state/counters.h"
#include "state/node.h"
#include "state/loads.h"
#include "state/connections.h"
#include "state/later.h"
#include "state/local_table.h"
#include "state/trace.h"
#include "state/answers.h"

#include "dispatch/turns.h"
#include "dispatch/two_choices.h"
#include "dispatch/least.h"
#include "dispatch/classes.h"

#include "steer/cookie.h"
#include "steer/placement.h"
#include "steer/closing.h"
#include "steer/fragments.h"
#include "steer/local_table.h"
#include "steer/ladder.h"
#include "steer/table.h"
#include "steer/assign.h"
#include "steer/later.h"

#include "send/l2.h"
#include "send/encapsulate.h"
#include "send/nat.h"
#include "send/answer.h"
#include "send/through.h"
#include "send/to_server.h"
#include "send/decapsulate.h"
#include "send/route.h"
#include "send/circle.h"

/* Keeps the names of the verdicts in BTF for user space. */
enum verdict *unused_verdict __attribute__((unused));
/* And those of the states of connections. */
enum connection_state *unused_state __attribute__((unused));
enum connection_flag *unused_flag __attribute__((unused));
struct ended_connection *unused_ended __attribute__((unused));

/* Are there services with return: through? */
volatile __u32 through_enabled;

/* Second tier: where the first sends to. All 0: this node takes no tunnel for its own. */
__be32 tier_address[4];
volatile __u32 tier_enabled;

/* Options in an order that the fast patterns do not know. Returns the offset of TSval in the TCP header, or the enum timestamp_search that says
 * why there is none. */
static __noinline int search_timestamp(struct xdp_md *ctx, __u32 offset, __u32 length)
{
	struct option_bytes options = {};
	__u32 last = length - 1, at = 0;
	int search;

	/* Pinned: what is compared is what is passed on. */
	asm volatile("" : "+r"(last));
	if (last >= TCP_OPTIONS_MAX || bpf_xdp_load_bytes(ctx, offset, &options, last + 1))
		return TIMESTAMP_MALFORMED;
	search = timestamp_walk(&options, length, &at);
	if (search == TIMESTAMP_FOUND)
		return at;
	return search == TIMESTAMP_AUTHENTICATED ? TIMESTAMP_ABSENT : search;
}

/* Find the timestamp option of the TCP header at p->l4 and take its values into d. Returns an enum timestamp_search. */
inline_always int read_timestamp(struct xdp_md *ctx, const struct packet *p, struct decision *d)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp = packet_at(data, p->l4);
	__be32 *value;
	__u32 at;

	if (p->header <= TCP_HEADER_MIN || (void *)(tcp + 1) > end)
		return TIMESTAMP_ABSENT;
	at = timestamp_fast(tcp, end);
	if (!at)
		at = search_timestamp(ctx, p->l4 + TCP_HEADER_MIN, p->header - TCP_HEADER_MIN);
	if (at < TCP_HEADER_MIN)
		return at;
	if (at > TCP_HEADER_MAX - 8)
		return TIMESTAMP_MALFORMED;
	value = (void *)tcp + at;
	if ((void *)(value + 2) > end)
		return TIMESTAMP_ABSENT;
	d->timestamp_at = at;
	d->timestamp = bpf_ntohl(value[0]);
	d->echo = bpf_ntohl(value[1]);
	return TIMESTAMP_FOUND;
}

static const enum verdict parsed_verdict[4] = {
	[PARSED] = VERDICT_CONTINUE,
	[PARSE_NOT_IP] = PASSED_NOT_IP,
	[PARSE_UNSUPPORTED] = PASSED_UNSUPPORTED,
	[PARSE_MALFORMED] = DROPPED_MALFORMED,
};

/* The same verdict, of which the verifier knows nothing: or it would walk all ways of sending once for every one of them. */
inline_always enum verdict any_verdict(struct decision *d, enum verdict verdict)
{
	volatile __u8 *byte = &d->verdict;

	*byte = verdict;
	return *byte;
}

/* steer() for packets of every shape. A global function, as others that any_way calls: it is verified once, and not once for every way that leads here. In
 * memory that is handed to such a function pointers do not last: it is given those of d apart, and the caller sets them again. */
__noinline int steer_any(const struct packet *p, const struct service *service, struct decision *decided, __u32 search)
{
	struct decision d = { .service = service };
	enum verdict verdict;

	if (!p || !service || !decided)
		return DROPPED_MALFORMED;
	d.echo = decided->echo;
	d.quoted = decided->quoted;
	verdict = steer(p, &d, search);
	decided->id = d.id;
	decided->plain = d.plain;
	decided->stops[0] = d.stops[0];
	decided->stops[1] = d.stops[1];
	return verdict;
}

/* Not inlined, as all that only some packets need: keys of maps then lie on the stack only as long as they are used. */
static __noinline const __u32 *find_vip_of(const struct packet *p)
{
	return find_vip(p->destination, p->destination_port, p->protocol, p->ipv6);
}

static __noinline const __u32 *find_vip_address(const struct packet *p)
{
	return find_vip(p->destination, 0, 0, p->ipv6);
}

/* Steer `flow`: the packet itself, or the one that an ICMP error quotes. */
inline_always enum verdict walk_flow(struct xdp_md *ctx, const struct packet *p, const struct packet *flow, struct decision *d,
				     __u32 number)
{
	const struct service *service = service_by_number(number);
	int search = TIMESTAMP_ABSENT;
	enum verdict verdict;

	if (!service)
		return PASSED_NO_SERVICE;
	if (flow->protocol == IPPROTO_TCP && carries_cookies(service))
		search = read_timestamp(ctx, flow, d);
	if (flow != p) {
		d->quoted = 1;
		d->echo = d->timestamp; /* the server wrote what it quotes */
	}
	verdict = steer_any(flow, service, d, search);
	d->service = service;
	d->server = server_by_id(service, d->id);
	if (!d->server)
		return DROPPED_NO_SERVER;
	if (flow != p)
		return verdict == FORWARDED_BY_COOKIE || verdict == FORWARDED_BY_LOCAL_TABLE ? FORWARDED_ICMP_BY_COOKIE :
											FORWARDED_ICMP_BY_FALLBACK;
	if (p->fragment == FRAGMENT_FIRST)
		fragment_learn(p, number, d->id);
	if (verdict == FORWARDED_BY_COOKIE && d->service->affinity == AFFINITY_TABLE)
		return steer_by_table(p, d);
	steer_learn(p, d, verdict);
	return verdict;
}

inline_always enum verdict walk_later_fragment(const struct packet *p, struct decision *d)
{
	const __u64 *known = fragment_find(p);

	if (!known)
		return DROPPED_UNKNOWN_FRAGMENT;
	d->service = service_by_number(*known >> 32);
	if (!d->service)
		return DROPPED_UNKNOWN_FRAGMENT;
	d->id = *known;
	d->server = server_by_id(d->service, d->id);
	return d->server ? FORWARDED_FRAGMENT : DROPPED_NO_SERVER;
}

/* VERDICT_CONTINUE: steer by the quoted packet, of service *number. */
inline_always enum verdict walk_icmp(struct xdp_md *ctx, struct packet *p, struct packet *quote, const __u32 **number)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct icmp_header *icmp = packet_at(data, p->l4);

	if (!find_vip_address(p))
		return PASSED_NO_SERVICE;
	if (p->fragment)
		return PASSED_UNSUPPORTED;
	if ((void *)(icmp + 1) > end)
		return DROPPED_MALFORMED;
	if (is_icmp_echo(p, icmp))
		return answer_echo(ctx, p);
	if (!is_icmp_error(p, icmp) || !parse_quote(quote, p, data, end))
		return PASSED_UNSUPPORTED;
	*number = find_vip_of(quote);
	return *number ? VERDICT_CONTINUE : PASSED_NO_SERVICE;
}

/* How a packet came. One byte, and never 0: so the verifier does not follow the value, and walks the rest once and not twice. */
enum { DIRECTLY = 1, BY_FIRST_TIER };

/* Whose answer is this? */
static __noinline const __u64 *return_find(const struct packet *p, const void *source_mac)
{
	struct return_key key = { .port = p->source_port, .protocol = p->protocol };
	const __u64 *known;

	__builtin_memcpy(key.address, p->source, 16);
	known = bpf_map_lookup_elem(&returns, &key);
	if (known)
		return known;
	__builtin_memcpy(key.mac, source_mac, ETH_ALEN);
	return bpf_map_lookup_elem(&returns, &key);
}

/* Makes the server's answer the service's. */
__noinline int mark_return(struct xdp_md *ctx, const struct packet *p, const struct service *service, const struct server *server,
			   const struct decision *decided)
{
	struct decision d = { .service = service, .server = server };
	enum verdict verdict = RETURNED_UNMARKED;

	if (!p || !service || !server || !decided)
		return DROPPED_MALFORMED;
	d.id = decided->id;
	d.timestamp_at = decided->timestamp_at;
	d.timestamp = decided->timestamp;
	if (d.timestamp_at && through_mark(ctx, p, &d))
		verdict = RETURNED;
	if (service->forward == FORWARD_NAT && !nat_to_client(ctx, p, service))
		return DROPPED_MALFORMED;
	return verdict;
}

/* An answer of a server whose service returns through this node? *action is set when it was sent on. */
inline_always enum verdict walk_return(struct xdp_md *ctx, struct packet *p, struct decision *d, int *action)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct service *service;
	const struct server *server;
	enum verdict verdict;
	const __u64 *known;

	if (!through_enabled || data + sizeof(struct ethhdr) > end)
		return PASSED_NO_SERVICE;
	known = p->fragment == FRAGMENT_LATER ? fragment_find(p) : return_find(p, ((struct ethhdr *)data)->h_source);
	if (!known)
		return PASSED_NO_SERVICE;
	service = service_by_number(*known >> 32);
	if (!service)
		return PASSED_NO_SERVICE;
	d->id = *known;
	server = server_by_id(service, d->id);
	if (!server)
		return PASSED_NO_SERVICE;
	if (!__builtin_memcmp(p->destination, server->source, 16))
		return PASSED_PROBE;
	if (find_vip_address(p)) /* a VIP is nobody's client */
		return PASSED_NO_SERVICE;
	if (p->fragment == FRAGMENT_FIRST)
		fragment_learn(p, service->number, d->id);
	/* A timestamp that comes back was let through with the SYN, be it by a node that knows this server better. */
	if (carries_cookies(service) && p->protocol == IPPROTO_TCP && read_timestamp(ctx, p, d) != TIMESTAMP_FOUND)
		d->timestamp_at = 0;
	verdict = mark_return(ctx, p, service, server, d);
	d->service = service;
	d->server = server;
	if (verdict >= DROPPED_MALFORMED)
		return verdict;
	*action = route_to_client(ctx, p);
	return verdict;
}

inline_always enum verdict walk(struct xdp_md *ctx, struct packet *p, struct decision *d, int *action)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet quote = {};
	const struct packet *flow = p;
	const __u32 *number = 0;
	enum verdict verdict;

	if (data + sizeof(struct ethhdr) > end || !addressed_to_us(ctx, data))
		return PASSED_NOT_IP;
	verdict = parsed_verdict[parse_frame(p, ctx, data, end) & 3];
	if (verdict != VERDICT_CONTINUE)
		return verdict;
	if (p->protocol == IPPROTO_ICMP || p->protocol == IPPROTO_ICMPV6) {
		verdict = walk_icmp(ctx, p, &quote, &number);
		flow = &quote;
	} else if (p->fragment == FRAGMENT_LATER) {
		if (!find_vip_address(p))
			return walk_return(ctx, p, d, action);
		verdict = walk_later_fragment(p, d);
	} else {
		number = find_vip_of(p);
		if (!number)
			return walk_return(ctx, p, d, action);
	}
	if (verdict == VERDICT_CONTINUE && number)
		verdict = walk_flow(ctx, p, flow, d, *number);
	verdict = any_verdict(d, verdict);
	if (verdict >= FORWARDED_NEW && verdict < RETURNED && d->server) {
		const struct service *service = d->service;
		const struct server *server = d->server;
		enum verdict why = verdict;

		verdict = send_to_server(ctx, p, service, server, d);
		d->service = service;
		d->server = server;
		if (verdict == why)
			count_server(server->counter, is_syn(p), why == FORWARDED_NEW, p->length);
	}
	return verdict;
}

static __noinline int report(const struct packet *p, const struct decision *d, __u32 service, enum verdict verdict)
{
	struct trace_event event = {
		.time_ns = bpf_ktime_get_coarse_ns(),
		.source_port = p->source_port,
		.destination_port = p->destination_port,
		.service = service,
		.server = d->server ? d->id : NO_ID,
		.length = p->length,
		.timestamp = d->timestamp,
		.echo = d->echo,
		.verdict = verdict,
		.tcp_flags = p->tcp_flags,
		.protocol = p->protocol,
		.ipv6 = p->ipv6,
		.stops = d->stops[0] | (__u32)d->stops[1] << 16,
	};

	__builtin_memcpy(event.source, p->source, 16);
	__builtin_memcpy(event.destination, p->destination, 16);
	return trace(&event);
}

inline_always int transmit(struct xdp_md *ctx, const struct server *server)
{
	return server->ifindex == ctx->ingress_ifindex ? XDP_TX : bpf_redirect(server->ifindex, 0);
}

/* An answer of this node to what the first tier sent on goes to its client by our own route: the first tier would not know what to do
 * with it. A global function: it is verified once, not for every way that leads here. */
__noinline int route_answer(struct xdp_md *ctx, __u32 l3, __u32 ipv6)
{
	struct packet answer = { .l3 = l3, .ipv6 = ipv6 != 0 };

	return route_to_client(ctx, &answer);
}

/* The whole walk, for every packet. */
inline_always int any_way(struct xdp_md *ctx, int came)
{
	struct packet packet = {};
	struct decision decision = {};
	int action = XDP_PASS;
	enum verdict verdict = walk(ctx, &packet, &decision, &action);
	__u32 service = decision.service ? decision.service->number : 0;

	if ((verdict == PASSED_NO_SERVICE || verdict == PASSED_UNSUPPORTED) && would_circle(ctx, &packet))
		verdict = DROPPED_NO_SERVICE;
	count_verdict(service, verdict, packet.length);
	if (trace_enabled)
		report(&packet, &decision, service, verdict);
	if (verdict >= DROPPED_MALFORMED)
		return XDP_DROP;
	if (verdict == ANSWERED_ECHO || verdict == ANSWERED_TOO_BIG)
		return came == BY_FIRST_TIER ? route_answer(ctx, packet.l3, packet.ipv6) : XDP_TX;
	if (verdict >= FORWARDED_NEW && verdict < RETURNED && decision.server)
		return transmit(ctx, decision.server);
	return action;
}

#define UNUSUAL (-1)

/* The same walk for a segment of the usual shape that goes to its server by IP in IP: nearly all there are. What is known of
 * them is constant here, so that it takes half the instructions. Does nothing to those that turn out to be others. */
inline_always int usual_way(struct xdp_md *ctx, const struct packet *p)
{
	struct decision d = {};
	const __u32 *number = find_vip(p->destination, p->destination_port, p->protocol, p->ipv6);
	int search = TIMESTAMP_ABSENT;
	enum verdict verdict;

	if (!number)
		return UNUSUAL;
	d.service = service_by_number(*number);
	if (!d.service || d.service->forward != FORWARD_IPIP || d.service->flags & SERVICE_THROUGH)
		return UNUSUAL;
	if (carries_cookies(d.service))
		search = read_timestamp(ctx, p, &d);
	else if (d.service->affinity == AFFINITY_LOCAL_TABLE && p->tcp_flags & TCP_FLAG_RST_BIT)
		return UNUSUAL; /* or it would be looked for again once it is removed */
	verdict = steer(p, &d, search);
	if (verdict == FORWARDED_BY_COOKIE && d.service->affinity == AFFINITY_TABLE)
		verdict = FORWARDED_BY_TABLE;
	if (!d.server || !(d.server->flags & SERVER_NEXT_HOP) || d.stops[0] | d.stops[1] ||
	    p->length + outer_length(d.server, 0, 0) > d.server->mtu)
		return UNUSUAL;
	if (verdict == FORWARDED_BY_TABLE) {
		struct table_flow flow;

		table_place(&flow, p, d.service, d.id);
		if (!later_count(p, d.service, &flow, d.plain)) {
			struct connection *c = table_find(d.service, &flow, d.plain);

			if (!c || !table_is_usual(c, p))
				return UNUSUAL;
			if (!table_count(c, d.service, p->length)) {
				count_verdict(d.service->number, DROPPED_OVER_LIMIT, p->length);
				return XDP_DROP;
			}
		}
	}
	steer_learn(p, &d, verdict);
	count_server(d.server->counter, is_syn(p), verdict == FORWARDED_NEW, p->length);
	verdict = send_ipip(ctx, p, d.server, verdict);
	count_verdict(d.service->number, verdict, p->length);
	return verdict >= DROPPED_MALFORMED ? XDP_DROP : transmit(ctx, d.server);
}

inline_always int usual_ipv4(struct xdp_md *ctx)
{
	struct packet packet = {};

	return parse_usual_ipv4(&packet, ctx) ? usual_way(ctx, &packet) : UNUSUAL;
}

inline_always int usual_ipv6(struct xdp_md *ctx)
{
	struct packet packet = {};

	return parse_usual_ipv6(&packet, ctx) ? usual_way(ctx, &packet) : UNUSUAL;
}

/* What goes on to the host's stack keeps its outer header: somebody may have looked at that. */
inline_always _Bool is_for_vip(const struct tunnel *t, void *data, void *end)
{
	struct iphdr *ip = data + (t->inner & 127);
	struct ipv6hdr *ip6 = (void *)ip;
	__be32 destination[4] = {};

	if (t->inner_ipv6) {
		if ((void *)(ip6 + 1) > end)
			return 0;
		__builtin_memcpy(destination, &ip6->daddr, sizeof(destination));
	} else {
		if ((void *)(ip + 1) > end)
			return 0;
		destination[0] = ip->daddr;
	}
	return find_vip(destination, 0, 0, t->inner_ipv6) != 0;
}

/* Second tier: takes off what the first has put around the packet, if it has. VERDICT_CONTINUE: walk on. */
static __noinline enum verdict take_off(struct xdp_md *ctx, volatile __u8 *came)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tunnel t = {};
	enum tunnel_search search;

	if (data + sizeof(struct ethhdr) > end || !addressed_to_us(ctx, data))
		return VERDICT_CONTINUE;
	search = tunnel_parse(&t, data, end);
	if (search == TUNNEL_ABSENT || __builtin_memcmp(t.destination, tier_address, sizeof(tier_address)))
		return VERDICT_CONTINUE;
	if (search == TUNNEL_MALFORMED)
		return DROPPED_MALFORMED;
	if (!is_for_vip(&t, data, end))
		return VERDICT_CONTINUE;
	if (!tunnel_copy_congestion(&t, data, end))
		return DROPPED_CONGESTED;
	*came = BY_FIRST_TIER;
	return tunnel_strip(ctx, &t) ? VERDICT_CONTINUE : DROPPED_MALFORMED;
}

inline_always int usual_frame(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be16 protocol;

	if (data + sizeof(struct ethhdr) > end || trace_enabled || !addressed_to_us(ctx, data))
		return UNUSUAL;
	protocol = *(__be16 *)(data + offsetof(struct ethhdr, h_proto));
	if (protocol == bpf_htons(ETH_P_IP))
		return usual_ipv4(ctx);
	return protocol == bpf_htons(ETH_P_IPV6) ? usual_ipv6(ctx) : UNUSUAL;
}

SEC("xdp.frags")
int lb_any(struct xdp_md *ctx)
{
	return any_way(ctx, DIRECTLY);
}

SEC("xdp.frags")
int lb_any_of_tier(struct xdp_md *ctx)
{
	return any_way(ctx, BY_FIRST_TIER);
}

/* Where packets go on that are not usual, by how they came. By a tail call: both walks do not fit on one stack, and a jump costs less than a call
 * that returns. The kernel empties an array that neither a process nor a pin has: user space pins that of each program that is attached. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, sizeof(__u32));
	__array(values, int(struct xdp_md *));
} ways SEC(".maps") = { .values = { [DIRECTLY - 1] = lb_any, [BY_FIRST_TIER - 1] = lb_any_of_tier } };

SEC("xdp.frags")
int lb(struct xdp_md *ctx)
{
	volatile __u8 came = DIRECTLY;
	int action;

	if (tier_enabled) {
		enum verdict verdict = take_off(ctx, &came);

		if (verdict != VERDICT_CONTINUE) {
			count_verdict(0, verdict, bpf_xdp_get_buff_len(ctx) - sizeof(struct ethhdr));
			return XDP_DROP;
		}
	}
	action = usual_frame(ctx);
	if (action != UNUSUAL)
		return action;
	if (came == BY_FIRST_TIER) /* constants: a known index is a jump */
		bpf_tail_call(ctx, &ways, BY_FIRST_TIER - 1);
	bpf_tail_call(ctx, &ways, DIRECTLY - 1);
	return XDP_PASS;
}

/* Run by user space on each CPU: what has been sent there is counted. The frame says nothing. */
SEC("xdp.frags")
int flush_counts(struct xdp_md *ctx)
{
	__u32 first = 0;

	later_flush(bpf_map_lookup_elem(&later_lists, &first));
	return XDP_PASS;
}
