/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* session.h - the ladder's rung of services with session tls: what role/session.h found out about the packet. */
#pragma once

struct session_found {
	__u16 id;
	__u8 verdict, pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct session_found);
} session_told SEC(".maps");

/* VERDICT_CONTINUE: it is to be found out. */
inline_always enum verdict steer_by_session(struct decision *d)
{
	__u32 first = 0;
	const struct session_found *told = bpf_map_lookup_elem(&session_told, &first);

	if (!d->told || !told)
		return VERDICT_CONTINUE;
	d->id = told->id;
	return told->verdict;
}
