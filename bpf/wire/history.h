/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* history.h - the timestamp that a packet echoes names the candidate that accepted its connection: a column of the
 * flow's slot (SHELL III-B). */
#pragma once

#include "wire/kernel.h"

#define HISTORY_BITS 2 /* of the timestamp: its low ones, below the clock */

/* The number of the column, or what is none. */
inline_always __u32 history_column(__u32 echo)
{
	return echo & ((1u << HISTORY_BITS) - 1);
}
