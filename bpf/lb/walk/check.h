/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* check.h - a packet of a health check goes to its server as clients' packets do: by the same row, header and redirect.
 * User space runs this on packets of sockets of its own (check.bpf.c), with BPF_F_TEST_XDP_LIVE_FRAMES: the kernel
 * transmits the result. Nothing is counted. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"
#include "lb/send/l2.h"
#include "lb/send/to_server.h"

/* In place of the MACs. */
struct check_destination {
	__u32 service; /* number */
	__u16 id; /* of the server */
	__u8 direct; /* addressed to the server itself: it only gets another Ethernet header */
	__u8 pad[5];
};
_Static_assert(sizeof(struct check_destination) == 2 * ETH_ALEN, "check_destination");

inline_always int send_check(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct service *service;
	const struct server *server;
	const struct check_destination *to = data;
	struct decision d = { .verdict = FORWARDED_NEW };
	struct packet p = {};
	enum verdict verdict;
	__u32 ifindex;
	_Bool direct;

	if (data + sizeof(struct ethhdr) > end || parse_frame(&p, ctx, data, end) != PARSED)
		return XDP_DROP;
	d.id = to->id;
	direct = to->direct;
	service = service_by_number(to->service);
	if (!service)
		return XDP_DROP;
	server = server_by_id(service, d.id);
	if (!server || !(server->flags & SERVER_NEXT_HOP))
		return XDP_DROP;
	ifindex = server->ifindex;
	if (direct)
		verdict = send_l2(ctx, &p, server, FORWARDED_NEW);
	else
		verdict = send_to_server(ctx, &p, service, server, &d);
	return verdict == FORWARDED_NEW ? bpf_redirect(ifindex, 0) : XDP_DROP;
}
