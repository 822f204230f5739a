/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* local_table.h - the baseline: what this node sent where, by 5-tuple, as Katran and Spotlight (V-D4) do. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/state/connections.h"
#include "lb/state/local_table.h"
#include "lb/state/node.h"
#include "lb/state/service.h"

/* What is known of the flow. */
inline_always struct local_connection *local_table_find(const struct packet *p, const struct service *service)
{
	struct connection_key key;

	connection_of(&key, p, service);
	return bpf_map_lookup_elem(&local_connections, &key);
}

/* 0: there is no room. */
static __noinline _Bool local_table_add(const struct packet *p, const struct service *service, __u16 id)
{
	struct local_connection c = { .id = id, .packets = 1, .bytes = p->length, .last = connection_clock() };
	struct connection_key key;

	c.first = c.last >> 10;
	connection_of(&key, p, service);
	return !bpf_map_update_elem(&local_connections, &key, &c, BPF_ANY);
}

static __noinline int local_table_end(const struct packet *p, const struct service *service, struct local_connection *c)
{
	struct connection_key key;

	c->id |= LOCAL_ENDED;
	if (!(p->tcp_flags & TCP_FLAG_RST_BIT))
		return 0;
	connection_of(&key, p, service);
	return bpf_map_delete_elem(&local_connections, &key);
}

inline_always void local_table_commit(const struct packet *p, const struct service *service, struct local_connection *c)
{
	c->packets++;
	c->bytes += p->length;
	c->last = connection_clock();
	if (p->tcp_flags & (TCP_FLAG_RST_BIT | TCP_FLAG_FIN_BIT))
		local_table_end(p, service, c);
}
