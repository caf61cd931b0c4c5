// simulator/memory/pending.h: memory operations that were issued and complete only at a wait.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "simulator/machine/wave.h"

namespace hipkittens::simulator {

// Every memory instruction captures its addresses (and a store its data) when it is issued and is queued here; the
// access itself happens when it completes. It completes as late as the hardware allows:
//   * vector memory: in issue order, when s_waitcnt vmcnt(n) leaves it outside the n youngest
//   * LDS: in issue order, when lgkmcnt(n) leaves it outside the n youngest (scalar loads may be the ones that
//     returned first, so they do not help)
//   * scalar loads: in any order, so only lgkmcnt(0) completes them
//   * flat: counts on both
// Barriers complete nothing. s_endpgm completes everything. A full counter (vmcnt 63, lgkmcnt 15) completes the
// oldest.
PendingOperations* create_pending_operations();
void destroy_pending_operations(PendingOperations* pending);

void complete_vector_memory(Wave* wave, uint32_t keep);
void complete_lgkm(Wave* wave, uint32_t keep);

// For waves that take turns: LDS has answered at the end of a turn, memory 128 to 144 steps after the issue.
// Flat operations, whose relative order is unknown, and loads into LDS, which may not arrive before others
// have read the previous contents, still complete with their waits.
void answer_in_time(Wave* wave, uint32_t turn);
void complete_all(Wave* wave);
bool has_pending(const Wave* wave);
void drop_pending(Wave* wave);  // after a fault: discard without performing

}  // namespace hipkittens::simulator
