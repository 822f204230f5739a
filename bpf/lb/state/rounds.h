/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* rounds.h - what dispatch draws from: a range of words for each service, named by its row. */
#pragma once

#include "wire/kernel.h"
#include "lb/state/service.h"

/* A word is a turn: the server's id, the price of a connection to it (the lower, the larger its weight; p2c and least),
 * server.counter and the server's group (least). Or, at the beginning of the ranges of awfd and lcf, a class: where its
 * range ends, and how many members it has. Single words of these change while packets read them. Whatever such a word
 * has ever named may be chosen. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1048576);
	__type(key, __u32);
	__type(value, __u64);
} rounds SEC(".maps");

/* The caller keeps index below service->rounds_count. */
inline_always __u64 round_word(const struct service *service, __u32 index)
{
	const volatile __u64 *word;

	index += service->rounds_base;
	word = bpf_map_lookup_elem(&rounds, &index);
	return word ? *word : NO_ID;
}

inline_always __u16 turn_id(__u64 word)
{
	return word;
}

inline_always __u16 turn_price(__u64 word)
{
	return word >> 16;
}

inline_always __u32 turn_counter(__u64 word)
{
	return word >> 32 & 0xfffffff;
}

inline_always __u32 turn_group(__u64 word)
{
	return word >> 60;
}
