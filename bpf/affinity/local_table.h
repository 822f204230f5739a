/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* local_table.h - the baseline: what this node sent where, by 5-tuple, as Katran and Spotlight (V-D4) do. */
#pragma once

/* The server that the flow was given; NO_ID: none is known. */
inline_always __u16 local_table_find(const struct packet *p, const struct service *service, _Bool quoted)
{
	struct local_connection *c;
	struct connection_key key;

	connection_of(&key, p, service);
	c = bpf_map_lookup_elem(&local_connections, &key);
	if (!c)
		return NO_ID;
	if (!quoted) {
		c->packets++;
		c->bytes += p->length;
		c->last = connection_clock();
	}
	return c->id;
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

static __noinline int local_table_remove(const struct packet *p, const struct service *service)
{
	struct connection_key key;

	connection_of(&key, p, service);
	return bpf_map_delete_elem(&local_connections, &key);
}
