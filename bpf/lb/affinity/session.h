/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* session.h - session tls: the server of the session that a ClientHello resumes (Yuz III-B, V-B). */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/packet/client_hello.h"
#include "lb/carrier/session_id.h"
#include "lb/state/service.h"
#include "lb/state/session_clients.h"
#include "lb/state/session_outcomes.h"
#include "lb/state/sessions.h"
#include "lb/state/trace.h"

/* By the key of either epoch. NO_ID: no server of the service has issued the name. */
inline_always __u16 session_open(const struct service *service, const struct session_config *config,
				 const struct hello *h)
{
	__u16 id = NO_ID;

	if (config->has_ids[service->epoch_parity & 1])
		id = session_id_open(&config->ids[service->epoch_parity & 1], h->name);
	if (id == NO_ID && config->has_ids[~service->epoch_parity & 1])
		id = session_id_open(&config->ids[~service->epoch_parity & 1], h->name);
	return id;
}

/* Outcome: what hello_read has found, or SESSION_UNTIMED. NO_ID: the policy's. */
inline_always __u16 session_server(const struct service *service, const struct session_config *config,
				   const struct packet *p, const struct hello *h, int outcome)
{
	const struct server *server;
	__u16 id = NO_ID;
	__u64 nonce;

	if (outcome == HELLO_COMPLETE && h->source != HELLO_NO_SESSION) {
		id = session_open(service, config, h);
		server = server_by_id(service, id);
		__builtin_memcpy(&nonce, h->name, 8);
		if (id == NO_ID)
			outcome = h->source == HELLO_BY_SESSION_ID ? SESSION_NONE : SESSION_UNKNOWN;
		else if (!server || server->flags & SERVER_DOWN)
			outcome = SESSION_UNAVAILABLE;
		else if (config->clients && !session_lets(nonce ^ service->number,
							  session_client(&service->placement_key, p), config->clients))
			outcome = SESSION_LIMITED;
		else
			outcome = SESSION_RESUMED;
	}
	count_session(service->number, outcome);
	if (is_traced())
		session_show(h, id, outcome);
	return outcome == SESSION_RESUMED ? id : NO_ID;
}
