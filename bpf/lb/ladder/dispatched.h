/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* dispatched.h - the ladder's first rung: the server of a new connection, by the service's policy. */
#pragma once

#include "wire/kernel.h"
#include "wire/choices.h"
#include "lb/state/local_table.h"
#include "lb/state/service.h"
#include "lb/dispatch/least.h"
#include "lb/dispatch/classes.h"
#include "lb/dispatch/turns.h"
#include "lb/dispatch/two_choices.h"
#include "lb/affinity/decision.h"
#include "lb/ladder/placed.h"

inline_always _Bool dispatched_by_placement(const struct service *service)
{
	return 1ULL << (service->dispatch & 63) &
	       (1 << DISPATCH_HASH | 1 << DISPATCH_MAGLEV | 1 << DISPATCH_WCMP | 1 << DISPATCH_CHOICES);
}

/* What steer_find learns besides the decision, for commit or for the slow path. */
struct finding {
	struct local_connection *entry; /* local-table: of the flow */
	__u32 turn; /* that it took; 0: none */
	_Bool again; /* lb's fast path may have taken one, and given the packet up */
};

inline_always __u32 finding_turn(const struct service *service, struct finding *f)
{
	f->turn = f->again ? take_turn_again(service) : take_turn(service);
	return f->turn;
}

/* lb has these inline: a call costs a new connection 7 to 10 ns. f->again is a constant wherever it stands here. */
inline_always void steer_by_dispatch(struct decision *d, struct finding *f)
{
	const struct service *service = d->service;
	__u32 id, turn;

	switch (service->dispatch) {
	case DISPATCH_P2C:
		id = dispatch_by_two_choices(service);
		break;
	case DISPATCH_LEAST:
		turn = finding_turn(service, f);
		id = f->again ? call_dispatch_by_least(service, turn) : dispatch_by_least(service, turn);
		break;
	case DISPATCH_AWFD:
	case DISPATCH_LCF:
		id = f->again ? call_dispatch_by_classes(service) : dispatch_by_classes(service);
		break;
	default:
		id = dispatch_by_turns(service, finding_turn(service, f));
	}
	steer_to(d, id);
}
