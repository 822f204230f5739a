/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* proxied.h - syn_proxy: the first packet of a connection whose SYN a load balancer has answered, data or not, goes to
 * the server that the policy has proposed for the SYN: our timestamp names it, to all load balancers. */
#pragma once

#include "wire/kernel.h"
#include "lb/state/loads.h"
#include "lb/state/service.h"
#include "lb/state/sessions.h"
#include "lb/state/verdict.h"
#include "lb/ladder/session.h"
#include "lb/walk/handshake.h"

/* The client has proved that it has our answer. It may do so again. */
inline_always int proxied_begins(const struct session_work *w, const struct service *service)
{
	struct session_begun *again = session_begun_again(w->hash, w->sequence);
	struct session_begun begun = { .sequence = w->sequence, .id = w->fallback };
	const struct server *server = server_by_id(service, w->fallback);

	if (is_over_session_limit(&w->packet, service, again))
		return DROPPED_SOURCE_LIMIT;
	if (again && w->echo)
		return session_again(again);
	begun.at = session_now();
	if (!w->echo) { /* later packets go by placement as well */
		if (!again && service->source_step)
			session_begun_put(w->hash, &begun);
		return session_found(w->fallback, FORWARDED_NO_TIMESTAMP);
	}
	if (!server)
		return DROPPED_NO_SERVER;
	session_begun_put(w->hash, &begun);
	load_begin(service, w->fallback, server);
	return session_found(w->fallback, FORWARDED_NEW);
}
