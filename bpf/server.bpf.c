/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* server.bpf.c - a server's side of Ballast: decapsulates what load balancers send, and puts each TCP connection's
 * cookie into its timestamps. Applications and the kernel's TCP see nothing of it.
 *
 *   server_xdp:      decapsulates, and delivers or forwards to the next stop
 *   server_ingress:  restores TSecr
 *   server_egress:   writes the cookie into TSval
 *   count_live:      counts connections of services with dispatch choices
 *   count_echoes:    writes the epochs that clients echo
 *   sweep_translated: writes which translated connections have ended
 */
#include "wire/kernel.h"
#include "server/verdict.h"
#include "server/socket/socket.h"
#include "server/accept/live.h"
#include "server/walk/echoes.h"
#include "server/walk/egress.h"
#include "server/walk/ingress.h"
#include "server/walk/sweep.h"
#include "server/walk/tunnel.h"

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
	enum agent_verdict verdict = mark(skb);

	agent_count(verdict, skb->len);
	return verdict == EGRESS_DROPPED_PROBE ? TC_DROP : TC_CONTINUE;
}

SEC("tp_btf/inet_sock_set_state")
int count_live(__u64 *ctx)
{
	live_count((const struct sock *)ctx[0], ctx[1], ctx[2]);
	return 0;
}

SEC("iter/bpf_map_elem")
int sweep_translated(struct bpf_iter__bpf_map_elem *ctx)
{
	return sweep(ctx);
}

SEC("iter/tcp")
int count_echoes(struct bpf_iter__tcp *ctx)
{
	return echoes_write(ctx);
}
