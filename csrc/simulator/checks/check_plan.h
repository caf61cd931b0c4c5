// simulator/checks/check_plan.h: what translation prepares for a checked program. A program translated without
// checks has no such plan.
// SPDX-License-Identifier: MIT
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "simulator/checks/register_effects.h"
#include "simulator/machine/program.h"
#include "simulator/memory/lds_banks.h"

namespace hipkittens::simulator::checks {

// What the checkers need to know about one memory instruction.
struct MemoryEffects {
    uint32_t instruction = 0;
    Queue queue = Queue::none;
    bool reads_lds = false, writes_lds = false, reads_memory = false, writes_memory = false;
    bool is_atomic = false, to_lds = false;
    bool is_counter = false;  // ds_append, ds_consume: one dword at operation->lds_offset
    bool is_private = false;  // scratch
    bool sc0 = false, sc1 = false;
    bool is_pair = false;
    memory::LdsAccess banks = memory::LdsAccess::read_b32;  // how LDS serves it
    bool is_ordered_by_cache = false;  // sc0, sc1: a flag of a protocol among waves or workgroups, not judged
    uint8_t memory_bytes = 0;          // per lane, in memory
    uint8_t bytes = 0;                 // per lane, in LDS if it accesses LDS
    uint32_t second = 0;               // read2, write2: distance of the second access
    uint32_t saved_first = 0, saved_count = 0;    // registers that it saves in scratch
    uint32_t result_first = 0, result_count = 0;  // registers that change when it completes
};

// Instructions [first, first + count) between two points where something can be issued, complete or change
// EXEC. Their registers are checked together, before the first of them runs.
struct Run {
    uint32_t first = 0, count = 0;
    RegisterSet writes;
    RegisterSet touches;  // registers they write, and those they read before any of them has written them
};

struct Hazard;

struct Plan {
    uint32_t checkers = 0;
    uint32_t accum_offset = 0;
    std::vector<Effects> effects;  // by instruction; empty effects for bytes that do not decode
    std::deque<MemoryEffects> memory;
    std::deque<Run> runs;
    std::shared_ptr<const std::vector<Hazard>> hazards;  // of the whole text, executed or not
    std::vector<uint32_t> synchronising;                 // instructions that make up spin locks
    bool follows_caches = false;                         // visibility.h: its workgroups may communicate
    std::vector<uint32_t> reading_flags;  // by which waves of a workgroup may wait for each other
};

// Emits the check steps around an instruction's own steps. Used by translate.cpp.
class PlanBuilder {
  public:
    PlanBuilder(Plan& plan, const Program& program, StepBuilder& builder, uint32_t accum_offset);

    // `is_indexed`: the registers it uses are known only when it runs (S_SET_GPR_IDX), so it is not checked.
    void before(uint32_t instruction, bool starts_block, bool is_indexed);
    void after(uint32_t instruction);  // called after its own steps were emitted

  private:
    bool joins_run(uint32_t instruction) const;
    void emit_cache_checks(uint32_t instruction);

    Plan& plan_;
    const Program& program_;
    StepBuilder& builder_;
    bool run_is_open_ = false;
};

}  // namespace hipkittens::simulator::checks
