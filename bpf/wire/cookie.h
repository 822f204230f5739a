/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* cookie.h - Cheetah III-A: the server's id, opaque, in the low bits of the TCP timestamp.
 *
 * A cookie of c bits is   epoch (1 bit) | (plain ^ flow hash) (c-1 bits).
 * The plain text is the server's id. With a connection table (III-B) it is
 *   node of the second tier | index in the connection table | id of the server
 * and of the first two together 0 says that the connection has no entry: then it is the id again.
 * The epoch's parity names the key, so that two keys live side by side and neither is mistaken for the other:
 * departs from Cheetah, which has one salt for ever. The wire timestamp is  clock << c | cookie.
 */
#pragma once

#include "wire/kernel.h"

inline_always __u32 cookie_plain_mask(__u8 cookie_bits)
{
	return (1u << ((cookie_bits - 1) & 31)) - 1;
}

inline_always __u32 cookie_make(__u16 plain, __u64 hash, __u8 epoch_parity, __u8 cookie_bits)
{
	__u32 mask = cookie_plain_mask(cookie_bits);

	return (__u32)(epoch_parity & 1) << ((cookie_bits - 1) & 31) | ((plain ^ (__u32)hash) & mask);
}

/* Which of the two keys wrote this timestamp. */
inline_always __u8 cookie_epoch_parity(__u32 timestamp, __u8 cookie_bits)
{
	return (timestamp >> ((cookie_bits - 1) & 31)) & 1;
}

inline_always __u32 cookie_plain(__u32 timestamp, __u64 hash, __u8 cookie_bits)
{
	return (timestamp ^ (__u32)hash) & cookie_plain_mask(cookie_bits);
}
