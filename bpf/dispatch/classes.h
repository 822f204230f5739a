/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* classes.h - awfd and lcf: stage I draws a priority class in proportion to weight * members, stage II one of its members (Spotlight
 * IV-B, algorithm 1).
 *
 * rounds: one word per class, the heaviest first (where its range ends | members << 32); everybody; the members of weight 1, 2, ...
 * User space changes these words one by one while packets read. Any two of them may be of different times: then the shares are a little
 * off, but whoever is found may be chosen.
 */
#pragma once

#define MAX_CLASSES 16

inline_always __u32 class_end(__u64 word)
{
	return word;
}

inline_always __u32 class_members(__u64 word)
{
	return word >> 32;
}

/* Where nobody has a weight above 0 everybody is drawn from: ECMP. */
__noinline int dispatch_by_classes(const struct service *service)
{
	__u32 classes, members, count, rest, weight = 0;
	__u64 drawn, word;

	if (!service || !service->members)
		return NO_ID;
	classes = service->classes;
	members = service->members;
	count = members;
	rest = bpf_get_prandom_u32();
	if (classes) {
		/* One draw for both stages: what the first leaves over is as random. */
		drawn = (__u64)rest * class_end(round_word(service, classes - 1));
		for (__u32 i = 0; i < MAX_CLASSES && i < classes; i++) {
			word = round_word(service, i);
			if (!class_members(word))
				continue;
			weight = classes - i;
			count = class_members(word);
			rest = drawn;
			if (drawn >> 32 < class_end(word))
				break;
		}
	}
	return turn_id(round_word(service, classes + weight * members + ((__u64)rest * count >> 32)));
}
