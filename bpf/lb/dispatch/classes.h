/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* classes.h - awfd and lcf: stage I draws a priority class in proportion to weight * members, stage II one of its
 * members (Spotlight IV-B, algorithm 1).
 *
 * rounds: one word per class, the heaviest first (last number of its range | members << 32); everybody; the members of
 * weight 1, 2, ... User space changes these words one by one while packets read. Any two of them may be of different
 * times: then the shares are a little off, but whoever is found may be chosen.
 */
#pragma once

#include "wire/kernel.h"
#include "lb/state/draws.h"
#include "lb/state/rounds.h"
#include "lb/state/service.h"

#define MAX_CLASSES 16

inline_always __u32 class_last(__u64 word)
{
	return word;
}

inline_always __u32 class_members(__u64 word)
{
	return word >> 32;
}

/* Where nobody has a weight above 0 everybody is drawn from: ECMP. */
inline_always int dispatch_by_classes(const struct service *service)
{
	__u32 random = draw();
	__u32 classes, members, count, weight = 0;

	if (!service->members)
		return NO_ID;
	classes = service->classes;
	members = service->members;
	count = members;
	for (__u32 i = 0; i < MAX_CLASSES && i < classes; i++) {
		__u64 word = round_word(service, i);

		if (!class_members(word))
			continue;
		weight = classes - i;
		count = class_members(word);
		if (random <= class_last(word))
			break;
	}
	/* One draw for both stages: numbers that lie together lead everywhere when they are multiplied by the golden
	 * ratio. */
	random *= 0x9e3779b1;
	return turn_id(round_word(service, classes + weight * members + ((__u64)random * count >> 32)));
}

/* See call_dispatch_by_least. */
__noinline int call_dispatch_by_classes(const struct service *service)
{
	return service ? dispatch_by_classes(service) : NO_ID;
}
