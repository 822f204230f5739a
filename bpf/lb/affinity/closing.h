/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* closing.h - RSTs of closed sockets carry no timestamp: remember the server when a FIN or RST passes with one. */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "wire/parse.h"
#include "lb/state/counters.h"
#include "lb/state/loads.h"
#include "lb/state/node.h"
#include "lb/state/service.h"
#include "lb/affinity/decision.h"

/* Returns whether this was news: a repeated FIN, or the RST after one, ends the connection only once. */
static __noinline _Bool closing_learn(const struct packet *p, const struct service *service, __u16 id)
{
	struct connection_key key;
	const __u64 *known;
	__u64 value = id;

	connection_of(&key, p, service);
	known = bpf_map_lookup_elem(&closing, &key);
	if (known && *known == value)
		return 0;
	bpf_map_update_elem(&closing, &key, &value, BPF_ANY);
	return 1;
}

inline_always __u16 closing_find(const struct packet *p, const struct service *service)
{
	struct connection_key key;
	const __u64 *id;

	connection_of(&key, p, service);
	id = bpf_map_lookup_elem(&closing, &key);
	return id ? *id : NO_ID;
}

/* A FIN or RST of a connection whose server is known. */
inline_always void closing_commit(const struct packet *p, const struct decision *d)
{
	if (!(p->tcp_flags & (TCP_FLAG_FIN_BIT | TCP_FLAG_RST_BIT)) || !closing_learn(p, d->service, d->id))
		return;
	count_closed(d->server->counter);
	load_end(d->service, d->id, d->server);
}
