// simulator/machine/translate.cpp: translates decoded instructions to steps, basic blocks and resolved branches.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <exception>
#include <optional>
#include <set>

#include "isa/decode.h"
#include "simulator/checks/check_plan.h"
#include "simulator/checks/finding.h"
#include "simulator/checks/hazards.h"
#include "simulator/execute/families.h"
#include "simulator/machine/control.h"
#include "simulator/machine/launch_trace.h"
#include "simulator/machine/mode_regions.h"
#include "simulator/machine/product_runs.h"
#include "simulator/machine/program.h"
#include "simulator/machine/register_index.h"
#include "simulator/tile_unit/tile_unit.h"

namespace hipkittens::simulator {

namespace {

using isa::Encoding;
using isa::Instruction;

struct Translation {
    const TranslateRequest& request;
    Program& program;
    StepBuilder builder;
    std::set<uint32_t> leaders;  // byte addresses at which a block starts
    std::vector<size_t> branch_steps;

    void decode_text();
    void find_leaders();
    void emit_steps();
    void resolve_branches();
};

// Bytes that do not decode stay in the list with no row: reaching them is the error, not their presence
// (padding and constants live in executable sections too).
void Translation::decode_text() {
    const auto text = request.text;
    size_t at = 0;
    while (at + 4 <= text.size()) {
        Instruction instruction;
        if (!isa::decode(request.target, text.data() + at, text.size() - at, static_cast<uint32_t>(at),
                         &instruction)) {
            instruction = Instruction{};
            instruction.target = request.target;
            instruction.address = static_cast<uint32_t>(at);
            instruction.bytes = 4;
        }
        program.instructions.push_back(instruction);
        at += instruction.bytes;
    }
}

bool bind_family(const Instruction& instruction, const Families& families, StepBuilder& builder) {
    if (bind_register_index(instruction, builder)) return true;
    switch (instruction.encoding) {
        case Encoding::sop1:
        case Encoding::sop2:
        case Encoding::sopk:
        case Encoding::sopc:
        case Encoding::sopp:
            return families.scalar(instruction, builder);
        case Encoding::smem:
            return families.scalar_memory(instruction, builder);
        case Encoding::vop1:
        case Encoding::vop2:
        case Encoding::vopc:
        case Encoding::vop3:
        case Encoding::vop3_sdst:
        case Encoding::vop3p:
            return families.vector(instruction, builder);
        case Encoding::mai:
            // v_accvgpr_read/write share the matrix encoding but move registers under EXEC like any vector
            // instruction.
            return families.matrix(instruction, builder) || families.vector(instruction, builder);
        case Encoding::mfma_scale:
            return families.matrix(instruction, builder);
        case Encoding::ds:
            return families.lds(instruction, builder);
        case Encoding::mubuf:
        case Encoding::mtbuf:
        case Encoding::flat:
        case Encoding::global:
        case Encoding::scratch:
            return families.vector_memory(instruction, builder);
    }
    return false;
}

// Instructions that MODE.VSKIP skips.
bool is_vector(const Instruction& instruction) {
    switch (instruction.encoding) {
        case Encoding::sop1:
        case Encoding::sop2:
        case Encoding::sopk:
        case Encoding::sopc:
        case Encoding::sopp:
        case Encoding::smem:
            return false;
        default:
            return true;
    }
}

// A wave has no memory for more: what follows its last register belongs to others.
bool has_registers(const Instruction& instruction, const TranslateRequest& request) {
    return std::all_of(instruction.begin(), instruction.end(), [&](const isa::Operand& operand) {
        if (operand.is_vgpr())
            return uint32_t{operand.code} - isa::code::first_vgpr + operand.dwords <= request.vgprs;
        if (!operand.is_agpr()) return true;
        return request.accum_offset + operand.code - isa::code::first_agpr + operand.dwords <= request.vgprs;
    });
}

bool is_branch(const Instruction& instruction) {
    using isa::Opcode;
    switch (instruction.opcode) {
        case Opcode::s_branch:
        case Opcode::s_cbranch_scc0:
        case Opcode::s_cbranch_scc1:
        case Opcode::s_cbranch_vccz:
        case Opcode::s_cbranch_vccnz:
        case Opcode::s_cbranch_execz:
        case Opcode::s_cbranch_execnz:
            return true;
        default:
            return false;
    }
}

bool leaves_block(const Instruction& instruction) {
    using isa::Opcode;
    return is_branch(instruction) || instruction.opcode == Opcode::s_endpgm ||
           instruction.opcode == Opcode::s_setpc_b64 || instruction.opcode == Opcode::s_swappc_b64 ||
           instruction.opcode == Opcode::s_call_b64;
}

void Translation::find_leaders() {
    for (const uint64_t entry : request.entry_addresses)
        leaders.insert(static_cast<uint32_t>(entry - request.text_address));
    for (const Instruction& instruction : program.instructions) {
        if (is_branch(instruction)) {
            for (const isa::Operand& operand : instruction) {
                if (operand.type != isa::OperandType::immediate) continue;
                leaders.insert(static_cast<uint32_t>(static_cast<int64_t>(instruction.address) + 4 +
                                                     4 * int64_t{operand.immediate}));
            }
        }
        if (leaves_block(instruction)) leaders.insert(instruction.address + instruction.bytes);
    }
}

void Translation::emit_steps() {
    const std::vector<uint32_t> regions = find_mode_regions(program.instructions);
    constexpr size_t none = ~size_t{0};
    size_t skip = none;  // the skip_vector step of the vector instructions being emitted
    const auto end_skip = [&] {
        if (skip != none)
            builder.steps()[skip].immediate = static_cast<int32_t>(builder.steps().size() - skip);
        skip = none;
    };
    program.step_at.assign(request.text.size() / 4 + 1, -1);
    std::optional<checks::PlanBuilder> checker;
    if (request.settings.checks) {
        auto plan = std::make_shared<checks::Plan>();
        checker.emplace(*plan, program, builder, request.accum_offset);
        if (request.settings.checks & checks::synccheck)
            plan->hazards =
                std::make_shared<const std::vector<checks::Hazard>>(checks::find_hazards(program, *plan));
        program.plan = std::move(plan);
    }
    const TraceSteps* const trace = request.settings.trace;
    const std::unique_ptr<TraceBuilder> tracer = trace ? trace->prepare(program, builder) : nullptr;
    for (uint32_t index = 0; index < program.instructions.size(); ++index) {
        const Instruction& instruction = program.instructions[index];
        builder.begin_instruction(index);
        const bool leads = leaders.count(instruction.address) || index == 0;
        const bool may_skip = instruction.row && regions[index] & mode_vskip && is_vector(instruction);
        if (leads || !may_skip) end_skip();
        program.step_at[instruction.address / 4] = static_cast<int32_t>(builder.steps().size());
        if (leads) {
            program.blocks.push_back({index, 0});
            builder.emit(trace ? trace->enter_block : count_block).immediate =
                static_cast<int32_t>(program.blocks.size()) - 1;
        }
        ++program.blocks.back().count;
        if (!instruction.row) {
            builder.emit(fault_unknown_bytes);
            continue;
        }
        if (may_skip && skip == none) {
            skip = builder.steps().size();
            builder.emit(trace ? trace->skip_vector : skip_vector);
            program.skip_runs.push_back({index, 0});
        }
        if (may_skip) ++program.skip_runs.back().count;
        if (!has_registers(instruction, request)) {
            builder.emit(fault_missing_register);
            continue;
        }
        const bool may_index = regions[index] & mode_gpr_index_enabled && is_indexable(instruction);
        if (checker) checker->before(index, leads || may_skip, may_index);
        const Control control = bind_control(instruction, builder);
        if (control == Control::branch) branch_steps.push_back(builder.steps().size() - 1);
        if (control != Control::none) continue;
        if (tracer) {
            if (tracer->leaves_out(index)) continue;
            tracer->before(index);
        }
        const size_t indexed = builder.steps().size();
        if (may_index) builder.emit(run_indexed);
        const bool bound = bind_instruction(instruction, builder, request.settings);
        if (!bound) builder.emit(fault_no_meaning);
        if (bound && checker) checker->after(index);
        if (bound && tracer) tracer->after(index);
        if (may_index) {
            builder.steps()[indexed].immediate = static_cast<int32_t>(builder.steps().size() - indexed - 1);
        }
    }
    end_skip();
    // A wave that runs off the end must also stop with a report.
    builder.emit(fault_unknown_bytes);
}

void Translation::resolve_branches() {
    for (size_t from : branch_steps) {
        Step& step = builder.steps()[from];
        const int64_t address = step.immediate;
        const bool inside =
            address >= 0 && address % 4 == 0 && address / 4 < static_cast<int64_t>(program.step_at.size());
        const int32_t target = inside ? program.step_at[address / 4] : -1;
        if (target < 0) {
            step.handler = fault_unknown_bytes;
        } else {
            step.immediate = target - static_cast<int32_t>(from);
        }
    }
}

}  // namespace

bool bind_instruction(const Instruction& instruction, StepBuilder& builder, const Settings& settings) {
    const size_t first_step = builder.steps().size();
    try {
        if (bind_family(instruction, families(settings.host_level), builder)) return true;
    } catch (const std::logic_error&) {
        // An operand that this family does not support, such as scc as a source of a vector instruction.
    }
    builder.steps().resize(first_step);
    return false;
}

const Step* Program::step_for_address(uint64_t address) const {
    if (address < text_address || (address - text_address) % 4 ||
        (address - text_address) / 4 >= step_at.size())
        return nullptr;
    const int32_t index = step_at[(address - text_address) / 4];
    return index < 0 ? nullptr : steps.data() + index;
}

uint64_t Program::address_of(const Step* step) const {
    return text_address + instructions[step->instruction].address;
}

std::unique_ptr<const Program> translate(const TranslateRequest& request) {
    auto program = std::make_unique<Program>();
    program->target = request.target;
    program->settings = request.settings;
    program->text_address = request.text_address;
    program->file = request.file;
    program->load_offset = request.load_offset;
    program->vgprs = request.vgprs;
    program->accum_offset = request.accum_offset;
    program->indexed = std::make_shared<IndexedSteps>();
    program->text.assign(request.text.begin(), request.text.end());
    Translation translation{
        request, *program, StepBuilder(request.settings, request.vgprs, request.accum_offset), {}, {}};
    translation.decode_text();
    translation.find_leaders();
    translation.emit_steps();
    translation.resolve_branches();
    program->steps = std::move(translation.builder.steps());
    if (gathers_products(request.settings)) gather_products(*program, translation.builder);
    if (uses_tile_unit(request.settings)) {
        tile_unit::adopt_products(program->steps.data(), program->steps.size(), program->instructions.data(),
                                  !request.settings.wave_turn);
    }
    program->constant_values = translation.builder.constant_values();
    program->wave_bytes = translation.builder.wave_bytes();
    return program;
}

}  // namespace hipkittens::simulator
