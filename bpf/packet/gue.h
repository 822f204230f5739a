/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* gue.h - GUE (draft-ietf-intarea-gue, variant 0) and the private data with which it carries the stops of the second chance. */
#pragma once

/* Specification constants (GUE) */
#define GUE_PORT 6080
#define GUE_SOURCE_PORT_BASE 49152 /* entropy for ECMP and RSS in the dynamic range */
#define GUE_VERSION_AND_CONTROL 0xe0
#define GUE_HEADER_WORDS 0x1f

#define GUE_PRIVATE_STOPS 1 /* our private data */
#define STOPS_MAX 2

struct gue_header {
	__u8 version_control_words; /* length of what follows these four bytes, in words */
	__u8 protocol;
	__be16 flags;
};

struct gue_stops { /* then STOPS_MAX addresses of the outer family */
	__u8 type;
	__u8 next; /* index of the next stop */
	__u8 count;
	__u8 reserved;
};
_Static_assert(sizeof(struct gue_stops) == 4, "gue_stops");

#define GUE_STOPS_LENGTH(ipv6) (sizeof(struct gue_stops) + STOPS_MAX * ((ipv6) ? 16 : 4))
