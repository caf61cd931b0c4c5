// simulator/machine/workgroup_slot.h: the registers, LDS and scratch in which one workgroup at a time runs.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "code_object/kernel.h"
#include "simulator/machine/program.h"
#include "simulator/machine/step_builder.h"
#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator {

// A worker keeps its slots for the whole launch: constant rows are written once, registers are reused without
// clearing (or poisoned, if requested).
class WorkgroupSlot {
  public:
    WorkgroupSlot(const Dispatch& dispatch, const code_object::Kernel& kernel, const void* dispatch_packet);
    ~WorkgroupSlot();
    WorkgroupSlot(const WorkgroupSlot&) = delete;

    // Sets up every wave as the hardware does at launch: EXEC, user SGPRs, workgroup ids, work-item ids.
    void begin(uint32_t linear_id);

    Workgroup workgroup;
    std::vector<uint64_t> block_counts;  // of the workgroup in this slot
    uint64_t order_state = 0;            // random state for the order of waves

  private:
    void initialise_registers(Wave* wave, uint32_t first_work_item);

    const Dispatch& dispatch_;
    const code_object::Kernel& kernel_;
    const void* dispatch_packet_;
    uint32_t work_items_;
    size_t memory_bytes_ = 0, wave_stride_ = 0, scratch_stride_ = 0;
    uint8_t* memory_ = nullptr;
};

}  // namespace hipkittens::simulator
