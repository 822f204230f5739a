/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* replica_table.h - entries in buckets of seven: a key is in one of two (lb/state/replicas.h says how they are shared).
 */
#pragma once

#include "wire/kernel.h"
#include "lb/state/replicas.h"

enum replica_insert {
	REPLICA_INSERTED,
	REPLICA_EXISTS,
	REPLICA_FULL,
	REPLICA_BUSY, /* other CPUs change the buckets */
};

inline_always __u32 replica_first(__u64 key)
{
	return (key & 0xffffffff) * replica_buckets >> 32;
}

inline_always __u32 replica_second(__u64 key)
{
	return (key * 0x9e3779b97f4a7c15ULL >> 32) * replica_buckets >> 32;
}

inline_always struct replica_entry *replica_in(struct replica_bucket *bucket, __u64 key)
{
	if (!bucket)
		return 0;
#pragma unroll
	for (int i = 0; i < 7; i++)
		if (*(volatile __u64 *)&bucket->slot[i].key == key && *(volatile __u64 *)&bucket->slot[i].word)
			return &bucket->slot[i];
	return 0;
}

/* map is a constant wherever this stands. */
inline_always struct replica_entry *replica_find(void *map, __u64 key)
{
	__u32 first = replica_first(key), second;
	struct replica_entry *found = replica_in(bpf_map_lookup_elem(map, &first), key);

	if (found)
		return found;
	second = replica_second(key);
	return replica_in(bpf_map_lookup_elem(map, &second), key);
}

/* The word of a key's entry, 0: it has none. Of where it may be, all lines are touched before any is compared: memory
 * loads them at once. */
inline_always __u64 replica_read(void *map, __u64 key)
{
	__u32 first = replica_first(key), second = replica_second(key);
	const struct replica_bucket *a = bpf_map_lookup_elem(map, &first), *b = bpf_map_lookup_elem(map, &second);
	const struct replica_entry *found;

	if (!a || !b)
		return 0;
	(void)*(const volatile __u64 *)&a->head;
	(void)*(const volatile __u64 *)&b->head;
	(void)*(const volatile __u64 *)&a->slot[6].word;
	(void)*(const volatile __u64 *)&b->slot[6].word;
	found = replica_in((void *)a, key) ?: replica_in((void *)b, key);
	return found ? *(const volatile __u64 *)&found->word : 0;
}

/* The state of a bucket, and of a key in it. */
struct replica_probe {
	__u64 head;
	__u64 word; /* of the key's entry, 0: none */
	_Bool busy; /* a slot that may be the key's is being filled or emptied */
};

inline_always void replica_probe(struct replica_probe *probe, struct replica_bucket *bucket, __u64 key)
{
	probe->head = __sync_fetch_and_add(&bucket->head, 0); /* before anything else of it is read */
#pragma unroll
	for (int i = 0; i < 7; i++) {
		__u64 there = *(volatile __u64 *)&bucket->slot[i].key;

		if (!(probe->head >> (i + 1) & 1))
			continue;
		if (there == key) {
			probe->word = *(volatile __u64 *)&bucket->slot[i].word;
			probe->busy |= !probe->word;
		} else if (!there) {
			probe->busy = 1;
		}
	}
}

inline_always __u32 replica_used(__u64 head)
{
	__u32 bits = head & REPLICA_USED;

	bits = (bits & 0x55) + (bits >> 1 & 0x55);
	bits = (bits & 0x33) + (bits >> 2 & 0x33);
	return (bits & 15) + (bits >> 4);
}

/* Takes a slot in `to`, which is `first` or the key's second bucket. 0: another CPU has changed one of them. */
inline_always __u64 replica_take(struct replica_bucket *first, __u64 first_head, struct replica_bucket *to, __u64 head)
{
	__u64 bit = ~head & REPLICA_USED;

	bit &= -bit;
	if (__sync_val_compare_and_swap(&to->head, head, (head | bit) + REPLICA_CHANGE) != head)
		return 0;
	if (to == first ||
	    __sync_val_compare_and_swap(&first->head, first_head, first_head + REPLICA_CHANGE) == first_head)
		return bit;
	__sync_fetch_and_and(&to->head, ~bit); /* what has it with that bit in mind has seen key 0 there */
	return 0;
}

inline_always void replica_fill(struct replica_bucket *bucket, __u64 bit, __u64 key, __u64 word)
{
#pragma unroll
	for (int i = 0; i < 7; i++) {
		if (bit != 2ULL << i)
			continue;
		__sync_lock_test_and_set(&bucket->slot[i].word, word);
		__sync_lock_test_and_set(&bucket->slot[i].key, key);
	}
}

/* Puts an entry in, unless there is one: *word is that one then. REPLICA_BUSY: try again. A global function: verified
 * once, and not for each try. */
__noinline int replica_try(struct replica_bucket *first, struct replica_bucket *second, __u64 key, __u64 *word)
{
	struct replica_probe a = {}, b = {};
	__u32 in_first, in_second;
	__u64 bit;

	if (!first || !second || !word)
		return REPLICA_FULL;
	replica_probe(&a, first, key);
	replica_probe(&b, second, key);
	if (a.word || b.word) {
		*word = a.word ?: b.word;
		return REPLICA_EXISTS;
	}
	if (a.busy || b.busy)
		return REPLICA_BUSY;
	in_first = replica_used(a.head);
	in_second = replica_used(b.head);
	if (in_first <= in_second) {
		if (in_first == 7)
			return REPLICA_FULL;
		bit = replica_take(first, a.head, first, a.head);
		if (bit)
			replica_fill(first, bit, key, *word);
	} else {
		bit = replica_take(first, a.head, second, b.head);
		if (bit)
			replica_fill(second, bit, key, *word);
	}
	return bit ? REPLICA_INSERTED : REPLICA_BUSY;
}

inline_always enum replica_insert replica_put(void *map, __u64 key, __u64 *word)
{
	__u32 at = replica_first(key);
	struct replica_bucket *first = bpf_map_lookup_elem(map, &at), *second;
	int result = REPLICA_BUSY;

	at = replica_second(key);
	second = bpf_map_lookup_elem(map, &at);
	for (int i = 0; i < REPLICA_TRIES && result == REPLICA_BUSY; i++)
		result = replica_try(first, second, key, word);
	return result;
}

/* Global functions: verified once. */
__noinline int replica_insert_entry(__u64 key, __u64 *word)
{
	return word ? replica_put(&replica_entries, key, word) : REPLICA_BUSY;
}

__noinline int replica_insert_answer(__u64 key, __u64 *word)
{
	return word ? replica_put(&replica_answers, key, word) : REPLICA_BUSY;
}

/* Puts in what user space has written down. Here, and not there: a process that is killed leaves no slot that is being
 * filled. */
inline_always void replica_insert_batch(void)
{
	for (__u32 i = 0; i < REPLICA_BATCH; i++) {
		__u32 index = i;
		struct replica_insertion *in = bpf_map_lookup_elem(&replica_batch, &index);
		__u64 word;

		if (!in || !in->key)
			break;
		word = in->word;
		in->result = in->into ? replica_insert_answer(in->key, &word) : replica_insert_entry(in->key, &word);
		in->word = word;
	}
}
