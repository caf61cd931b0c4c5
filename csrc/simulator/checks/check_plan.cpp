// simulator/checks/check_plan.cpp: decides which check steps are inserted around which instructions.
// SPDX-License-Identifier: MIT
#include "simulator/checks/check_plan.h"

#include <string_view>

#include "isa/effects.h"
#include "isa/table.h"
#include "simulator/checks/finding.h"
#include "simulator/checks/shadow.h"

namespace hipkittens::simulator::checks {

using isa::Opcode;

namespace {

bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

// In the step that issues the operation, extra[0] is its size, extra[1] the second access of a pair, and bits
// 15..8 of extra[2] the memory::LdsAccess (execute/memory_step.h).
MemoryEffects memory_effects(const isa::Instruction& instruction, uint32_t index, const Effects& effects,
                             const Step& issue) {
    const std::string_view name = instruction.row->mnemonic;
    MemoryEffects result;
    result.instruction = index;
    result.queue = effects.queue;
    result.bytes = static_cast<uint8_t>(issue.extra[0]);
    const bool loads = contains(name, "load") || contains(name, "read"), stores = contains(name, "store");
    if (effects.queue == Queue::lds) {
        const bool moves_lanes = contains(name, "permute") || contains(name, "swizzle");
        result.is_counter = contains(name, "append") || contains(name, "consume");
        const bool writes = name.starts_with("ds_write"), reads = name.starts_with("ds_read");
        result.is_pair = contains(name, "read2") || contains(name, "write2");
        if (result.is_pair) result.second = issue.extra[1];
        if (reads || writes) result.banks = static_cast<memory::LdsAccess>(issue.extra[2] >> 8 & 0xff);
        result.is_atomic = !moves_lanes && !writes && !reads;
        result.reads_lds = !moves_lanes && !writes;
        result.writes_lds = !moves_lanes && !reads;
    } else if (effects.queue == Queue::vector_memory || effects.queue == Queue::flat) {
        result.is_atomic = contains(name, "atomic");
        result.to_lds = instruction.lds || contains(name, "load_lds");
        result.is_private = instruction.encoding == isa::Encoding::scratch;
        result.reads_memory = loads || result.is_atomic;
        result.writes_memory = stores || result.is_atomic;
        result.writes_lds = result.to_lds;
        result.memory_bytes = result.bytes;
        result.sc0 = instruction.sc0;
        result.sc1 = instruction.sc1;
        result.is_ordered_by_cache = instruction.sc1 || (instruction.sc0 && !result.is_atomic);
        if (result.to_lds) result.bytes = static_cast<uint8_t>(issue.dwords * 4);
    }
    result.saved_first = effects.saved_first;
    result.saved_count = effects.saved_count;
    for (uint32_t number = 0; number < register_count; ++number) {
        if (!effects.writes.has(number)) continue;
        if (result.result_count == 0) result.result_first = number;
        ++result.result_count;
    }
    return result;
}

// Instructions of which spin locks and semaphores between workgroups are made.
bool synchronises(const isa::Instruction& instruction) {
    const std::string_view name = instruction.row->mnemonic;
    return name == "s_sleep" || name == "buffer_wbl2" || name == "buffer_inv" ||
           (contains(name, "atomic") && instruction.sc0);
}

// Instructions, other than barriers, with which waves of a workgroup wait for each other: they read flags at
// workgroup scope or wider.
bool reads_flags(const isa::Instruction& instruction) {
    const std::string_view name = instruction.row->mnemonic;
    const bool reads = contains(name, "_load_") || contains(name, "atomic");
    return reads && !contains(name, "load_lds") && !instruction.lds && (instruction.sc0 || instruction.sc1);
}

}  // namespace

PlanBuilder::PlanBuilder(Plan& plan, const Program& program, StepBuilder& builder, uint32_t accum_offset)
    : plan_(plan), program_(program), builder_(builder) {
    plan.checkers = builder.settings().checks;
    plan.accum_offset = accum_offset;
    plan.effects.reserve(program.instructions.size());
    for (uint32_t index = 0; index < program.instructions.size(); ++index) {
        const isa::Instruction& instruction = program.instructions[index];
        plan.effects.push_back(instruction.row ? effects_of(instruction, builder) : Effects{});
        if (instruction.row && synchronises(instruction)) plan.synchronising.push_back(index);
        if (instruction.row && reads_flags(instruction)) plan.reading_flags.push_back(index);
    }
    plan.follows_caches =
        (plan.checkers & racecheck) && (!plan.synchronising.empty() || !plan.reading_flags.empty());
}

void PlanBuilder::before(uint32_t index, bool starts_block, bool is_indexed) {
    if (is_indexed) {
        run_is_open_ = false;
        return;
    }
    const Effects& effects = plan_.effects[index];
    const Opcode opcode = program_.instructions[index].opcode;
    if (starts_block || !run_is_open_) {
        plan_.runs.push_back({index, 0, {}, {}});
        builder_.emit(check_run).data = &plan_.runs.back();
    }
    Run& run = plan_.runs.back();
    ++run.count;
    RegisterSet exposed = effects.reads;
    if (!effects.ignores_exec) {
        for (uint32_t i = 0; i < exposed.count; ++i) {
            for (uint32_t j = 0; j < run.writes.count; ++j) {
                if (run.writes.words[j].word == exposed.words[i].word)
                    exposed.words[i].bits &= ~run.writes.words[j].bits;
            }
        }
    }
    run.writes.add(effects.writes);
    run.touches.add(exposed);
    run.touches.add(effects.writes);
    run_is_open_ = effects.queue == Queue::none && !effects.writes_exec && !effects.is_control;
    if (opcode == Opcode::s_barrier) builder_.emit(check_barrier);
    if (opcode == Opcode::s_waitcnt && (plan_.checkers & notes)) {
        const isa::WaitCounts counts = isa::decode_wait_counts(
            static_cast<uint16_t>(program_.instructions[index].operands[0].immediate));
        Step& step = builder_.emit(check_wait);
        step.extra[0] = counts.vmcnt;
        step.extra[1] = counts.lgkmcnt;
    }
    if (plan_.follows_caches) emit_cache_checks(index);
    if (opcode == Opcode::v_readfirstlane_b32 && (plan_.checkers & synccheck))
        builder_.emit(check_first_lane);
}

void PlanBuilder::emit_cache_checks(uint32_t index) {
    const isa::Instruction& instruction = program_.instructions[index];
    if (instruction.opcode == Opcode::buffer_inv) builder_.emit(check_invalidate).extra[0] = instruction.sc1;
    if (instruction.opcode == Opcode::buffer_wbl2 && instruction.sc1) builder_.emit(check_write_back);
    if (instruction.opcode == Opcode::s_waitcnt) {
        const auto counts = static_cast<uint16_t>(instruction.operands[0].immediate);
        builder_.emit(check_written_back).extra[0] = isa::decode_wait_counts(counts).vmcnt;
    }
}

void PlanBuilder::after(uint32_t index) {
    const Effects& effects = plan_.effects[index];
    if (effects.queue == Queue::none) return;
    plan_.memory.push_back(
        memory_effects(program_.instructions[index], index, effects, builder_.steps().back()));
    builder_.emit(check_issue).data = &plan_.memory.back();
}

}  // namespace hipkittens::simulator::checks
