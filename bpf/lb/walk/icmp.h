/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* icmp.h - echo requests to a VIP, and errors of the path about what its servers have sent. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/packet/quote.h"
#include "lb/state/verdict.h"
#include "lb/ladder/slow.h"
#include "lb/send/answer.h"

/* To a VIP. VERDICT_CONTINUE: steer by the quoted packet, of service *number. */
inline_always enum verdict walk_icmp(struct xdp_md *ctx, struct packet *p, struct packet *quote, const __u32 **number)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct icmp_header *icmp = packet_at(data, p->l4);

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
