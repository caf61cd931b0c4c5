// simulator/machine/product_runs.cpp: groups the matrix products of a block.
// SPDX-License-Identifier: MIT
#include "simulator/machine/product_runs.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "isa/effects.h"
#include "isa/table.h"
#include "simulator/checks/register_effects.h"

namespace hipkittens::simulator {

namespace {

using isa::Opcode;

constexpr size_t longest_run = 64;

// Products that the tile unit computes without widening the operands first.
bool is_product(const Program& program, const Step& step) {
    // A product whose operands are copied first has a handler in Step::data; the step that counts a block has
    // no destination.
    if (step.data != nullptr || step.dwords != 0 || step.destination == 0) return false;
    switch (program.instructions[step.instruction].opcode) {
        case Opcode::v_mfma_f32_16x16x32_bf16:
        case Opcode::v_mfma_f32_16x16x16_bf16:
        case Opcode::v_mfma_f32_32x32x16_bf16:
        case Opcode::v_mfma_f32_32x32x8_bf16:
            return true;
        default:
            return false;
    }
}

// Register numbers are fixed per instruction only if no mode changes them.
bool has_modes(const Program& program) {
    if (!program.skip_runs.empty()) return true;
    return std::any_of(program.instructions.begin(), program.instructions.end(), [](const auto& instruction) {
        const std::string_view name = instruction.row ? instruction.row->mnemonic : "";
        return name.starts_with("s_set_gpr_idx") || name.starts_with("v_movrel");
    });
}

bool may_be_passed(const isa::Instruction& instruction) {
    if (!instruction.row) return false;
    switch (instruction.opcode) {
        case Opcode::s_waitcnt:
        case Opcode::s_barrier:
        case Opcode::s_nop:
        case Opcode::s_setprio:
            return true;
        default:
            break;
    }
    const std::string_view name = instruction.row->mnemonic;
    if (name.starts_with("s_set") || name.find("pc_b64") != std::string_view::npos) return false;
    switch (isa::effects(instruction).unit) {
        case isa::Unit::salu:
        case isa::Unit::smem:
        case isa::Unit::valu:
        case isa::Unit::transcendental:
        case isa::Unit::lds:
        case isa::Unit::vector_memory:
        case isa::Unit::flat:
            return true;
        default:
            return false;
    }
}

struct Held {
    Step step;
    checks::Effects effects;
};

bool can_pass(const Held& product, const checks::Effects& other) {
    return !other.writes.overlaps(product.effects.reads) && !other.writes.overlaps(product.effects.writes) &&
           !other.reads.overlaps(product.effects.writes);
}

}  // namespace

bool gathers_products(const Settings& settings) {
    return settings.host_level >= HostLevel::avx512_bf16 && settings.arithmetic == Arithmetic::fast &&
           !settings.checks && !settings.trace && !settings.wave_turn;
}

void gather_products(Program& program, const StepBuilder& builder) {
    if (has_modes(program)) return;
    std::vector<bool> leads(program.instructions.size());
    for (const Block& block : program.blocks) leads[block.first] = true;
    std::vector<Step> ordered;
    ordered.reserve(program.steps.size());
    std::vector<Held> held;
    const auto release = [&] {
        for (const Held& product : held) ordered.push_back(product.step);
        held.clear();
    };
    for (size_t first = 0; first < program.steps.size();) {
        const uint32_t index = program.steps[first].instruction;
        size_t end = first + 1;
        while (end < program.steps.size() && program.steps[end].instruction == index) ++end;
        const isa::Instruction& instruction = program.instructions[index];
        if (end - first == 1 && !leads[index] && is_product(program, program.steps[first])) {
            if (held.size() == longest_run) release();
            held.push_back({program.steps[first], checks::effects_of(instruction, builder)});
            first = end;
            continue;
        }
        if (!held.empty()) {
            bool passes = !leads[index] && may_be_passed(instruction);
            if (passes) {
                const checks::Effects effects = checks::effects_of(instruction, builder);
                passes = std::all_of(held.begin(), held.end(),
                                     [&](const Held& product) { return can_pass(product, effects); });
            }
            if (!passes) release();  // all of them: a complete run is not divided
        }
        ordered.insert(ordered.end(), program.steps.begin() + static_cast<ptrdiff_t>(first),
                       program.steps.begin() + static_cast<ptrdiff_t>(end));
        first = end;
    }
    release();
    program.steps = std::move(ordered);
    for (size_t i = program.steps.size(); i-- > 0;) {
        const uint32_t index = program.steps[i].instruction;
        if (!leads[index]) program.step_at[program.instructions[index].address / 4] = static_cast<int32_t>(i);
    }
}

ProductRuns product_runs(const Program& program) {
    ProductRuns result;
    bool follows = false;
    for (const Step& step : program.steps) {
        const bool is_one = is_product(program, step);
        result.products += is_one;
        result.runs += is_one && !follows;
        follows = is_one;
    }
    return result;
}

}  // namespace hipkittens::simulator
