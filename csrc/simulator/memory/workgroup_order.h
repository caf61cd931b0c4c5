// simulator/memory/workgroup_order.h: the order in which memory sees the accesses of one workgroup.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/memory/pending_queue.h"

namespace hipkittens::simulator {

// The waves of a workgroup run on one compute unit, whose vector L1 processes their accesses in order, unless the code object
// is built for tgsplit. LLVM relies on it: a workgroup-scope release has no s_waitcnt vmcnt(0) on gfx942 and gfx950 (AMDGPUUsage,
// "Memory Model gfx942": "vmcnt(0) if tgsplit"), so that `fence; s_barrier; fence` orders an earlier store with another wave's
// later load although nobody waited for the store.
//
// Operations in flight take effect as late as their waits allow; so an overlapping operation on the older side of a barrier
// takes effect first: an older store writes memory, an older load saves the current contents of memory. Registers and LDS still
// change only with the wait of the issuing wave, and other workgroups see a store as late as before.

// Called before `operation`, the oldest in its wave's ring, takes effect.
void order_before_completion(Wave* wave, PendingOperation* operation);

// BUFFER_WBL2 writes back what the waves of the workgroup have stored before a barrier that this wave has
// passed. A release at agent scope waits only for its own wave's stores.
void order_before_write_back(Wave* wave);

// Finishes an operation whose effect on memory came early: registers and LDS change now.
void finish_early(Wave* wave, PendingOperation* operation);

}  // namespace hipkittens::simulator
