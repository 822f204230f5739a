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

/* What commit changes. */
struct finding {
	struct local_connection *entry; /* local-table: of the flow */
	struct cursor *cursor; /* by turns: where the next one is */
};

inline_always void steer_by_dispatch(struct decision *d, struct finding *f)
{
	const struct service *service = d->service;
	__u32 id;

	switch (service->dispatch) {
	case DISPATCH_P2C:
		id = dispatch_by_two_choices(service);
		break;
	case DISPATCH_LEAST:
		f->cursor = cursor_of(service);
		id = dispatch_by_least(service, f->cursor);
		break;
	case DISPATCH_AWFD:
	case DISPATCH_LCF:
		id = dispatch_by_classes(service);
		break;
	default:
		f->cursor = cursor_of(service);
		id = dispatch_by_turns(service, f->cursor);
	}
	steer_to(d, id);
}
