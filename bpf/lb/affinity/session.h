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
inline_always __u16 session_open(const struct service *service, const struct session_config *config, __u64 nonce,
				 __u64 sealed)
{
	__u16 id = NO_ID;

	if (config->has_ids[service->epoch_parity & 1])
		id = session_id_open(&config->ids[service->epoch_parity & 1], nonce, sealed);
	if (id == NO_ID && config->has_ids[~service->epoch_parity & 1])
		id = session_id_open(&config->ids[~service->epoch_parity & 1], nonce, sealed);
	return id;
}

/* What becomes of a name that a hello shows, and *id: that it opens to. */
inline_always enum session_outcome session_judge(const struct service *service, const struct session_config *config,
						 const struct packet *p, __u8 source, const __u64 name[2], __u16 *id)
{
	const struct server *server;

	*id = session_open(service, config, name[0], name[1]);
	server = server_by_id(service, *id);
	if (*id == NO_ID)
		return source == HELLO_BY_SESSION_ID ? SESSION_NONE : SESSION_UNKNOWN;
	if (!server || server->flags & SERVER_DOWN)
		return SESSION_UNAVAILABLE;
	if (config->clients &&
	    !session_lets(name[0] ^ service->number, session_client(&service->placement_key, p), config->clients))
		return SESSION_LIMITED;
	return SESSION_RESUMED;
}

/* Outcome: what hello_read has found, or SESSION_UNTIMED. NO_ID: the policy's. */
inline_always __u16 session_server(const struct service *service, const struct session_config *config,
				   const struct packet *p, const struct hello *h, int outcome)
{
	__u16 id = NO_ID;
	__u64 name[2];

	if (outcome == HELLO_COMPLETE && h->source != HELLO_NO_SESSION) {
		__builtin_memcpy(name, h->name, sizeof(name));
		outcome = session_judge(service, config, p, h->source, name, &id);
	}
	count_session(service->number, outcome);
	if (is_traced())
		session_show(h, id, outcome);
	return outcome == SESSION_RESUMED ? id : NO_ID;
}
