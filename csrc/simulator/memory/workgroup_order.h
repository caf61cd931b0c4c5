// simulator/memory/workgroup_order.h: the order in which memory sees the accesses of one workgroup.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/memory/pending_queue.h"

namespace hipkittens::simulator {

// The waves of a workgroup run on one compute unit, whose vector L1 takes their accesses in order, unless the code object
// is built for tgsplit. LLVM relies on it: a workgroup-scope release is no s_waitcnt vmcnt(0) on gfx942 and gfx950 (AMDGPUUsage,
// "Memory Model gfx942": "vmcnt(0) if tgsplit"), so that `fence; s_barrier; fence` orders a store before it with another wave's
// load behind it although nobody waited for the store.
//
// Operations in flight take effect as late as their waits allow; so what overlaps, and lies on the older side of a barrier,
// takes effect first: an older store writes memory, an older load keeps what memory holds now. Registers and LDS still change
// only with the wait of the wave that issued it, and what other workgroups see of a store is as late as before.

// Before `operation`, the oldest in its wave's ring, takes effect.
void order_before_completion(Wave* wave, PendingOperation* operation);

// BUFFER_WBL2 writes back what the waves of the workgroup have stored before a barrier that this one has passed. A release at
// agent scope waits for its own wave's stores alone.
void order_before_write_back(Wave* wave);

// Ends an operation whose effect on memory came early: registers and LDS change now.
void finish_early(Wave* wave, PendingOperation* operation);

}  // namespace hipkittens::simulator
