/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* acceptance.h - what a server needs to know to accept connections of services with dispatch choices or pass them on
 * (SHELL III-B, 6LB): its load, and where the dynamic limit is. Index of the arrays: served.acceptance; 0 is of no
 * service. */
#pragma once

#include "wire/kernel.h"

#define ACCEPTANCES 8194 /* as many as rows of services: old ones and new ones at once */

/* Living connections, by events of the kernel's TCP since the map was made: below 0 where it missed a beginning. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ACCEPTANCES);
	__type(key, __u32);
	__type(value, __s64);
} live_connections SEC(".maps");

struct { /* by user space alone. Load connections: what is to be added to live_connections, signed; cpu, endpoint: the
	    load; backlog: unused */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ACCEPTANCES);
	__type(key, __u32);
	__type(value, __u32);
} loads SEC(".maps");

struct { /* policy dynamic: limit << 32 | attempts << 16 | accepted, of the present window */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ACCEPTANCES);
	__type(key, __u32);
	__type(value, __u64);
} limits SEC(".maps");

/* SYNs that were passed on: fingerprint << 32 | when first, in ms since boot. When they come again at once they are
 * passed on again: else two servers would answer. When they still come later nobody answers. Newer ones replace older
 * ones; one that is forgotten is decided again. */
#define PASSED_ON_BITS 16
#define PASSED_ON_AGAIN_MS \
	2500 /* a SYN that nobody answers comes again after 1 s, and until 3 s are over once more (RFC 6298 2.1, 5.5) */
#define PASSED_ON_MS 60000
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << PASSED_ON_BITS);
	__type(key, __u32);
	__type(value, __u64);
} passed_on SEC(".maps");
