/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* btf.h - keeps types in BTF for user space, which takes their names and layouts from there. */
#pragma once

#include "wire/kernel.h"
#include "lb/packet/peer_message.h"
#include "lb/state/connections.h"
#include "lb/state/session_outcomes.h"
#include "lb/state/trace.h"
#include "lb/state/verdict.h"

enum verdict *unused_verdict __attribute__((unused));
enum connection_state *unused_state __attribute__((unused));
enum connection_flag *unused_flag __attribute__((unused));
struct ended_connection *unused_ended __attribute__((unused));
struct peer_message *unused_message __attribute__((unused));
struct trace_event *unused_event __attribute__((unused));
enum session_outcome *unused_outcome __attribute__((unused));
