/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fragments.h - later fragments follow the first one, which alone has the ports. */
#pragma once

#include "wire/kernel.h"
#include "wire/parse.h"
#include "lb/state/node.h"
#include "lb/state/predecessors.h"
#include "lb/state/service.h"
#include "lb/state/verdict.h"
#include "lb/affinity/decision.h"

inline_always void fragment_of(struct fragment_key *key, const struct packet *p)
{
	__builtin_memcpy(key->source, p->source, 16);
	__builtin_memcpy(key->destination, p->destination, 16);
	key->id = p->fragment_id;
	key->protocol = p->protocol;
}

static __noinline void fragment_learn(const struct packet *p, __u32 service, __u16 id)
{
	struct fragment_key key;
	__u64 value = (__u64)service << 32 | id;

	fragment_of(&key, p);
	bpf_map_update_elem(&fragments, &key, &value, BPF_ANY);
}

static __noinline const __u64 *fragment_find(const struct packet *p)
{
	struct fragment_key key;

	fragment_of(&key, p);
	return bpf_map_lookup_elem(&fragments, &key);
}

inline_always enum verdict walk_later_fragment(const struct packet *p, struct decision *d)
{
	const __u64 *known = fragment_find(p);

	if (!known)
		return DROPPED_UNKNOWN_FRAGMENT;
	d->service = service_by_number(*known >> 32);
	if (!d->service)
		return DROPPED_UNKNOWN_FRAGMENT;
	d->id = *known;
	d->server = target_by_id(d->service, d->id);
	return d->server ? FORWARDED_FRAGMENT : DROPPED_NO_SERVER;
}
