/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* session.h - control packets and sessions of BFD (RFC 5880 4.1, 6.8). */
#pragma once

#include "wire/kernel.h"

#define BFD_PORT 3784
#define BFD_SOURCE_PORT 49152
#define BFD_SESSIONS 64
#define BFD_FUNCTIONS 1024

enum bfd_state { BFD_ADMIN_DOWN, BFD_DOWN, BFD_INIT, BFD_UP };

#define BFD_VERSION (1 << 5)
#define BFD_POLL 0x20
#define BFD_FINAL 0x10
#define BFD_INDEPENDENT 0x08 /* of the control plane */
#define BFD_REFUSED 0x07 /* authentication, demand, multipoint */

struct bfd_packet {
	__u8 version;
	__u8 state;
	__u8 multiplier;
	__u8 length;
	__be32 mine, yours;
	__be32 min_tx, min_rx, min_echo;
};
_Static_assert(sizeof(struct bfd_packet) == 24, "RFC 5880 4.1");

struct bfd_key {
	__be32 neighbor[4]; /* IPv4: in the first word */
};

struct bfd_session {
	__be32 discriminator;
	__u32 interval_us;
	__u32 multiplier;
	__u32 state; /* enum bfd_state, that was answered last */
	__u64 heard_ns; /* CLOCK_MONOTONIC */
	__u64 received;
	__u64 refused; /* packets that say they are of this neighbour */
	__u64 detection_us; /* after which the neighbour holds this host for dead */
};
_Static_assert(sizeof(struct bfd_session) == 48, "struct bfd_session is shared with Go");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BFD_SESSIONS);
	__type(key, struct bfd_key);
	__type(value, struct bfd_session);
} bfd_sessions SEC(".maps"); /* with routers */

/* With network functions, as long as the node forwards for them: they are not to find a load balancer whose daemon is
 * gone for good. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BFD_FUNCTIONS);
	__type(key, struct bfd_key);
	__type(value, struct bfd_session);
} bfd_functions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} bfd_until SEC(".maps"); /* CLOCK_MONOTONIC, in ns; functions get no answer after it */

inline_always struct bfd_session *session_with(const struct bfd_key *neighbor)
{
	struct bfd_session *session = bpf_map_lookup_elem(&bfd_sessions, neighbor);
	__u32 zero = 0;
	__u64 *until;

	if (session)
		return session;
	until = bpf_map_lookup_elem(&bfd_until, &zero);
	if (!until || *until < bpf_ktime_get_ns())
		return 0;
	return bpf_map_lookup_elem(&bfd_functions, neighbor);
}

/* RFC 5880 6.8.6, RFC 5881 5: only who is on the link can send with this TTL, and only who has heard us knows the
 * discriminator. */
inline_always _Bool acceptable(const struct bfd_packet *in, __u8 ttl, const struct bfd_session *session)
{
	__u8 state = in->state >> 6;

	if (ttl != 255 || in->version >> 5 != 1 || in->length != sizeof(*in) || in->state & BFD_REFUSED ||
	    !in->multiplier || !in->mine)
		return 0;
	if ((in->state & (BFD_POLL | BFD_FINAL)) == (BFD_POLL | BFD_FINAL))
		return 0;
	return in->yours ? in->yours == session->discriminator : state <= BFD_DOWN;
}

inline_always void make_answer(const struct bfd_packet *in, const struct bfd_session *session, struct bfd_packet *out)
{
	static const __u8 answers[] = {
		[BFD_ADMIN_DOWN] = BFD_DOWN, [BFD_DOWN] = BFD_INIT, [BFD_INIT] = BFD_UP, [BFD_UP] = BFD_UP
	};
	__u8 state = answers[in->state >> 6 & 3];
	__u32 theirs = bpf_ntohl(in->min_tx);

	out->version = BFD_VERSION;
	out->state = state << 6 | BFD_INDEPENDENT | (in->state & BFD_POLL ? BFD_FINAL : 0);
	out->multiplier = session->multiplier;
	out->length = sizeof(*out);
	out->mine = session->discriminator;
	out->yours = in->mine;
	/* No more often than what is answered. */
	out->min_tx = bpf_htonl(theirs > session->interval_us ? theirs : session->interval_us);
	out->min_rx = bpf_htonl(session->interval_us);
	out->min_echo = 0;
}
