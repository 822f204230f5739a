/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ladder.h - the order in which the server of a packet is found. The only file that decides it.
 *
 *   1. new connection            -> dispatch
 *   2. carries a valid cookie    -> its server (affinity table: and its entry, in assign.h)
 *   3. known to be closing, or in the local table -> its server
 *   4. otherwise                 -> placement, with the previous owners as further stops
 */
#pragma once

inline_always _Bool dispatched_by_placement(const struct service *service)
{
	return 1ULL << (service->dispatch & 63) & (1 << DISPATCH_HASH | 1 << DISPATCH_MAGLEV | 1 << DISPATCH_WCMP);
}

inline_always void steer_by_cookie(const struct packet *p, struct decision *d)
{
	const struct service *service = d->service;
	const struct siphash_key *key = &service->cookie_key[0];
	__u8 parity = cookie_epoch_parity(d->echo, service->cookie_bits);

	if (!(service->epochs & 1 << parity))
		return;
	if (parity)
		key = &service->cookie_key[1];
	d->plain = cookie_plain(d->echo, flow_hash(key, p->source, p->source_port, p->destination_port, p->ipv6),
				service->cookie_bits);
	d->id = d->plain >> (service->id_shift & 15) & ((1u << (service->id_bits & 15)) - 1);
	d->server = server_by_id(service, d->id);
}

inline_always void steer_by_closing(const struct packet *p, struct decision *d)
{
	d->id = closing_find(p, d->service);
	d->server = server_by_id(d->service, d->id);
}

inline_always void steer_by_placement(const struct packet *p, struct decision *d)
{
	const struct service *service = d->service;
	_Bool may_be_older = service->flags & SERVICE_SECOND_CHANCE && p->protocol == IPPROTO_TCP && !is_syn(p);

	d->id = place(placement_slot(service, p->source, p->source_port, p->destination_port, p->ipv6), may_be_older, d->stops);
	d->server = server_by_id(service, d->id);
}

inline_always void steer_by_dispatch(struct decision *d)
{
	const struct service *service = d->service;

	switch (service->dispatch) {
	case DISPATCH_P2C:
		d->id = dispatch_by_two_choices(service);
		break;
	case DISPATCH_LEAST:
		d->id = dispatch_by_least(service);
		break;
	case DISPATCH_AWFD:
	case DISPATCH_LCF:
		d->id = dispatch_by_classes(service);
		break;
	default:
		d->id = dispatch_by_turns(service);
	}
	d->server = server_by_id(service, d->id);
}

/* Rungs 1 to 3 of a service whose connections carry cookies. Sets d->server where one of them knows; says why else placement must. */
inline_always enum verdict steer_by_what_it_carries(const struct packet *p, struct decision *d, int search)
{
	if (search == TIMESTAMP_MALFORMED)
		return FORWARDED_BAD_OPTIONS;
	if (search != TIMESTAMP_FOUND) {
		if (!(p->tcp_flags & TCP_FLAG_RST_BIT))
			return FORWARDED_NO_TIMESTAMP;
		steer_by_closing(p, d);
		return d->server ? FORWARDED_BY_CLOSING : FORWARDED_RESET;
	}
	if (is_syn(p))
		return FORWARDED_NEW;
	if (!d->echo)
		return FORWARDED_NO_ECHO;
	steer_by_cookie(p, d);
	if (d->server)
		return FORWARDED_BY_COOKIE;
	return d->service->flags & SERVICE_FIRST_TIER && d->plain && !d->id ? FORWARDED_NO_NODE : FORWARDED_BAD_COOKIE;
}

inline_always enum verdict steer_by_local_table(const struct packet *p, struct decision *d)
{
	d->id = local_table_find(p, d->service, d->quoted);
	d->server = server_by_id(d->service, d->id);
	if (d->server) {
		if (p->tcp_flags & TCP_FLAG_RST_BIT && !d->quoted)
			local_table_remove(p, d->service);
		return FORWARDED_BY_LOCAL_TABLE;
	}
	return d->quoted || (p->protocol == IPPROTO_TCP && !is_syn(p)) ? FORWARDED_UNKNOWN : FORWARDED_NEW;
}

/* What this packet teaches about later ones. */
inline_always void steer_learn(const struct packet *p, const struct decision *d, enum verdict verdict)
{
	__s32 connections = 1;

	if (verdict == FORWARDED_BY_COOKIE || verdict == FORWARDED_BY_LOCAL_TABLE) {
		if (!(p->tcp_flags & (TCP_FLAG_FIN_BIT | TCP_FLAG_RST_BIT)))
			return;
		if (!closing_learn(p, d->service, d->id))
			return;
		count_closed(d->server->counter);
		connections = -1;
	} else if (verdict != FORWARDED_NEW) {
		return;
	}
	if (d->service->dispatch == DISPATCH_P2C || d->service->dispatch == DISPATCH_LEAST)
		load_learn(d->server, connections);
}

inline_always enum verdict steer(const struct packet *p, struct decision *d, int search)
{
	const struct service *service = d->service;
	enum verdict verdict = FORWARDED_BY_HASH;

	if (service->affinity == AFFINITY_LOCAL_TABLE)
		verdict = steer_by_local_table(p, d);
	else if (service->affinity != AFFINITY_HASH)
		verdict = steer_by_what_it_carries(p, d, search);
	if (d->server)
		return verdict;
	if (verdict != FORWARDED_NEW || dispatched_by_placement(service) || service->flags & SERVICE_THROUGH)
		steer_by_placement(p, d);
	if (verdict == FORWARDED_NEW) {
		/* A server that cannot take part keeps its share, but only placement finds its connections again. */
		if (d->server && d->server->flags & SERVER_NO_COOKIE)
			return FORWARDED_STRIPPED;
		if (!dispatched_by_placement(service))
			steer_by_dispatch(d);
	}
	if (verdict == FORWARDED_NEW && service->affinity == AFFINITY_LOCAL_TABLE && d->server && !local_table_add(p, service, d->id)) {
		steer_by_placement(p, d); /* as its later packets will be */
		verdict = FORWARDED_TABLE_FULL;
	}
	return d->server ? verdict : DROPPED_NO_SERVER;
}
