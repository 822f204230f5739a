/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* sweep.h - which entries of translated connections are to be freed. */
#pragma once

#include "wire/kernel.h"
#include "server/timestamp/hold_back.h"
#include "server/timestamp/translated.h"
#include "server/walk/echoes.h"

/* Implementation constants */
#define ENDED_LOOKS 3 /* without a packet after both sides have ended */

struct bpf_iter__bpf_map_elem {
	__bpf_md_ptr(struct bpf_iter_meta *, meta);
	__bpf_md_ptr(struct bpf_map *, map);
	__bpf_md_ptr(void *, key);
	__bpf_md_ptr(void *, value);
} __attribute__((preserve_access_index));

volatile __u32 sweep_ages; /* this walk counts for the silence of connections that have not ended, too */
volatile __u32 sweep_present; /* entries that walks have seen since user space made it 0 */

/* Writes the key of each entry that is to be freed. */
inline_always int sweep(struct bpf_iter__bpf_map_elem *ctx)
{
	struct hold_back *h = ctx->value;
	const struct flow_key *at = ctx->key;
	struct flow_key key;
	__u8 state, age;
	_Bool ended;

	if (!at || !h)
		return 0;
	sweep_present++;
	state = h->state;
	age = state & TRANSLATED_AGE;
	ended = (state & TRANSLATED_ENDED) == TRANSLATED_ENDED;
	if (age >= (ended ? ENDED_LOOKS : TRANSLATED_AGE)) {
		key = *at;
		bpf_seq_write(ctx->meta->seq, &key, sizeof(key));
	} else if (ended || sweep_ages) {
		h->state = state + 1;
	}
	return 0;
}
