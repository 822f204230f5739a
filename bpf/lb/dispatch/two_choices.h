/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* two_choices.h - p2c: of two servers drawn at random, the one with fewer open connections (Mitzenmacher 1996, Cheetah
 * II).
 *
 * Servers of unequal weight are drawn by their weights and compared by load for weight: drawn alike, the heaviest of
 * many could never get more than 2/n (Wieder 2007).
 */
#pragma once

#include "wire/kernel.h"
#include "lb/state/draws.h"
#include "lb/state/loads.h"
#include "lb/state/rounds.h"
#include "lb/state/service.h"

inline_always __u16 dispatch_by_two_choices(const struct service *service)
{
	__u32 random = draw();
	__u32 count = service->rounds_count;
	__u64 a, b, mask;

	if (!count)
		return NO_ID;
	a = round_word(service, (random & 0xffff) * count >> 16);
	b = round_word(service, (random >> 16) * count >> 16);
	mask = (cost_of(b) - cost_of(a)) >> 63;
	asm volatile("" : "+r"(mask)); /* no branch, which nobody could predict */
	return turn_id(a ^ ((a ^ b) & mask));
}
