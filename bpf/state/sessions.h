/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* sessions.h - session tls: what a load balancer needs to answer SYNs by itself and to read ClientHellos, and where connections that begin have gone. */
#pragma once

/* Of a service. Index: service->session. Immutable once a row names it. */
struct session_config {
	struct session_id_key ids[2]; /* by parity of the epoch */
	struct siphash_state syn_cookies;
	__u8 has_ids[2]; /* is there a key of that parity? */
	__u16 mss; /* that we tell clients: what fits the ways to all servers */
	__u8 scale; /* of windows, as all servers' agents have it */
	__u8 clients; /* of a session that reach its server, 0: all */
	__u8 pad[2];
};
_Static_assert(sizeof(struct session_config) == 168, "session_config");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by user space at load time */
	__type(key, __u32);
	__type(value, struct session_config);
} session_configs SEC(".maps");

/* Where a connection's hello went: it may come again, and so may what follows, until the client has heard of its server. Lost, it goes by what it says, or its
 * timestamp. */
struct session_begun {
	__be32 sequence; /* of the hello's first byte: connections of the same ports before or after have others, farther away than our window */
	__u16 id;
	__u16 generation;
	__u32 held; /* place of its hold, and 1; 0: the hello came whole */
	__u32 held_ms; /* when it was released */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct connection_key);
	__type(value, struct session_begun);
} sessions_begun SEC(".maps");
