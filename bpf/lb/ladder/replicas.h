/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* replicas.h - the ladder's rung that asks other load balancers (Anolis): here what this node knows by itself, or by
 * the packet's message. What must be asked, lb_ask goes on with (lb/walk/ask.h). */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/parse.h"
#include "lb/packet/peer_message.h"
#include "lb/state/loads.h"
#include "lb/state/replicas.h"
#include "lb/state/ring.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/closing.h"
#include "lb/affinity/decision.h"
#include "lb/affinity/replicated.h"
#include "lb/ladder/dispatched.h"
#include "lb/ladder/placed.h"

/* Whose packet it is, a load balancer said that it is asked for: user space and other nodes agree. Services whose
 * connections carry something ask only for what carries nothing. */
inline_always _Bool asks_replicas(const struct service *service, enum verdict why)
{
	if (!(service->flags & SERVICE_REPLICATED))
		return 0;
	if (service->affinity == AFFINITY_REPLICATED)
		return 1;
	return why == FORWARDED_NO_TIMESTAMP || why == FORWARDED_RESET ||
	       (service->affinity == AFFINITY_QUIC && why == FORWARDED_BAD_COOKIE);
}

/* Errors of the path, and RSTs, make no entry. */
inline_always _Bool only_looks_up(const struct packet *flow, _Bool quoted)
{
	return quoted || (flow->protocol == IPPROTO_TCP && flow->tcp_flags & TCP_FLAG_RST_BIT);
}

/* What a message said of the packet that was in it. Returns a verdict. */
inline_always enum verdict steer_by_answer(const struct packet *p, struct decision *d)
{
	__u32 first = 0;
	const struct replica_answer *answer = bpf_map_lookup_elem(&received_answer, &first);

	if (!answer || !answer->owner) {
		enum verdict why = answer && answer->full ? FORWARDED_TABLE_FULL : d->verdict;

		steer_by_placement(p, d);
		return d->server ? why : DROPPED_NO_SERVER;
	}
	steer_to(d, answer->owner);
	if (!d->server)
		return DROPPED_NO_SERVER;
	if (answer->full)
		return FORWARDED_TABLE_FULL;
	if (!(answer->flags & PEER_NEW) || answer->owner != answer->proposed)
		return FORWARDED_BY_REPLICA;
	load_begin(d->service, d->id, d->server);
	return FORWARDED_NEW;
}

/* By what this node knows. VERDICT_CONTINUE: others have to be asked. A global function: see steer_slow. */
__noinline int steer_by_replicas(const struct packet *p, const struct service *service, struct decision *decided)
{
	const struct replica_current *now = replicas_now();
	const struct replica_config *config = now ? replica_config_now(now) : 0;
	struct decision d = { .service = service };
	struct replica_known known = {};
	enum verdict verdict = VERDICT_CONTINUE;

	if (!p || !service || !decided)
		return DROPPED_MALFORMED;
	d.verdict = decided->verdict;
	if (decided->owner_known) {
		verdict = steer_by_answer(p, &d);
	} else if (!has_ring(now)) {
		steer_by_placement(p, &d);
		verdict = d.server ? d.verdict : DROPPED_NO_SERVER;
	} else if (config) {
		replica_usable(peer_key(&config->key_hash, p), service->number, &known);
		if (known.owner && (known.fresh || only_looks_up(p, decided->quoted))) {
			steer_to(&d, known.owner);
			verdict = d.server ? FORWARDED_BY_REPLICA : DROPPED_NO_SERVER;
		}
	}
	if (d.server && !decided->quoted && p->protocol == IPPROTO_TCP)
		closing_commit(p, &d);
	decided->id = d.id;
	return verdict;
}

/* Proposes a server for a connection that nobody may know yet. NO_ID: there is none. */
__noinline int propose_server(const struct packet *p, const struct service *service, __u32 begins)
{
	struct decision d = { .service = service };
	struct finding f = {};

	if (!p || !service)
		return NO_ID;
	if (begins && !dispatched_by_placement(service))
		steer_by_dispatch(&d, &f);
	else
		steer_by_placement(p, &d);
	return d.server ? d.id : NO_ID;
}
