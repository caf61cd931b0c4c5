// simulator/machine/register_index.cpp: see register_index.h.
// SPDX-License-Identifier: MIT
#include "simulator/machine/register_index.h"

#include <algorithm>
#include <mutex>

#include "isa/table.h"
#include "simulator/machine/mode_regions.h"
#include "simulator/machine/program.h"
#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator {

using isa::Instruction;
using isa::Opcode;

namespace {

// M0 while indexing: the index in bits 7:0; bits 15:12 select the operands it is added to (source 0, 1, 2,
// destination).
constexpr uint32_t index_bits = 0xff, operand_bits = 0xf000;

void change_m0(Wave* wave, uint32_t mask, uint32_t value) {
    write_scalar(wave, layout::m0, (read_scalar(wave, layout::m0) & ~mask) | (value & mask));
}

const Step* set_index_on(Wave* wave, const Step* step) {
    wave->mode |= mode_gpr_index_enabled;
    change_m0(wave, index_bits, read_scalar(wave, step->source[0]));
    change_m0(wave, operand_bits, step->extra[0] << 12);
    return step + 1;
}
const Step* set_index_off(Wave* wave, const Step* step) {
    wave->mode &= ~mode_gpr_index_enabled;
    return step + 1;
}
const Step* set_index_operands(Wave* wave, const Step* step) {
    change_m0(wave, operand_bits, step->extra[0] << 12);
    return step + 1;
}
const Step* set_index(Wave* wave, const Step* step) {
    change_m0(wave, index_bits, read_scalar(wave, step->source[0]));
    return step + 1;
}
const Step* set_vskip(Wave* wave, const Step* step) {
    const uint32_t bit = read_scalar(wave, step->source[1]) & 31;
    const bool skip = read_scalar(wave, step->source[0]) >> bit & 1;
    wave->mode = skip ? wave->mode | mode_vskip : wave->mode & ~mode_vskip;
    return step + 1;
}

// s0..s101: a relative address past them refers to something else on hardware, and is a mistake in a program.
constexpr uint32_t relative_registers = 102;

// extra[0]: the register named by the instruction; extra[1]: dwords.
const Step* move_relative_source(Wave* wave, const Step* step) {
    const uint64_t first = uint64_t{step->extra[0]} + read_scalar(wave, layout::m0);
    if (first + step->extra[1] > relative_registers)
        return fault(wave, step, "s_movrels reads beyond s101", first);
    const uint32_t place = layout::scalar(static_cast<uint32_t>(first));
    if (step->extra[1] == 2) {
        write_scalar64(wave, step->destination, read_scalar64(wave, place));
    } else {
        write_scalar(wave, step->destination, read_scalar(wave, place));
    }
    return step + 1;
}
const Step* move_relative_destination(Wave* wave, const Step* step) {
    const uint64_t first = uint64_t{step->extra[0]} + read_scalar(wave, layout::m0);
    if (first + step->extra[1] > relative_registers)
        return fault(wave, step, "s_movreld writes beyond s101", first);
    const uint32_t place = layout::scalar(static_cast<uint32_t>(first));
    if (step->extra[1] == 2) {
        write_scalar64(wave, place, read_scalar64(wave, step->source[0]));
    } else {
        write_scalar(wave, place, read_scalar(wave, step->source[0]));
    }
    return step + 1;
}

const Step* go_on(Wave*, const Step* step) { return static_cast<const Step*>(step->data); }

// The instruction with the index added to the registers that M0 selects. False: one of them does not exist.
bool add_index(Instruction& instruction, const Program& program, uint32_t m0) {
    const uint32_t index = m0 & index_bits;
    int source = 0;
    for (int i = 0; i < instruction.operand_count && i < instruction.row->form_count; ++i) {
        if (instruction.row->forms[i].kind >= isa::Kind::implicit_vcc) continue;
        isa::Operand& operand = instruction.operands[i];
        const int which = i < instruction.row->destination_count ? 3 : source++;
        if (which > 3 || !(m0 >> (12 + which) & 1)) continue;
        if (!operand.is_vgpr() && !operand.is_agpr()) continue;
        const bool is_agpr = operand.is_agpr();
        const uint32_t first = is_agpr ? isa::code::first_agpr : isa::code::first_vgpr;
        const uint32_t vector_registers = std::min(program.vgprs, program.accum_offset);
        const uint32_t count = is_agpr ? program.vgprs - vector_registers : vector_registers;
        const uint32_t number = operand.code - first + index;
        if (number + operand.dwords > count) return false;
        operand.code = static_cast<uint16_t>(first + number);
    }
    return true;
}

}  // namespace

const std::vector<Step>* IndexedSteps::find(uint64_t key) const {
    std::shared_lock lock(mutex_);
    const auto place = steps_.find(key);
    return place == steps_.end() ? nullptr : place->second.get();
}

const std::vector<Step>* IndexedSteps::add(uint64_t key, std::vector<Step> steps) {
    std::unique_lock lock(mutex_);
    auto& place = steps_[key];
    if (!place) place = std::make_unique<const std::vector<Step>>(std::move(steps));
    return place.get();
}

bool is_indexable(const Instruction& instruction) {
    switch (instruction.encoding) {
        case isa::Encoding::vop1:
        case isa::Encoding::vop2:
        case isa::Encoding::vopc:
        case isa::Encoding::vop3:
        case isa::Encoding::vop3_sdst:
        case isa::Encoding::vop3p:
        case isa::Encoding::mai:
            return true;
        default:
            return false;
    }
}

const Step* run_indexed(Wave* wave, const Step* step) {
    const uint32_t m0 = read_scalar(wave, layout::m0) & (index_bits | operand_bits);
    if (!(wave->mode & mode_gpr_index_enabled)) return step + 1;
    const Program& program = *wave->workgroup->dispatch->program;
    const uint64_t key = uint64_t{step->instruction} << 16 | m0;
    const std::vector<Step>* steps = program.indexed->find(key);
    if (!steps) {
        Instruction instruction = program.instructions[step->instruction];
        if (!add_index(instruction, program, m0))
            return fault(wave, step, "the register index in M0 leads beyond the wave's registers", m0);
        StepBuilder builder(program.settings, program.vgprs, program.accum_offset);
        builder.begin_instruction(step->instruction);
        builder.set_constant_values(program.constant_values);
        if (!bind_instruction(instruction, builder, program.settings))
            return fault(wave, step, "this instruction cannot take a register index");
        if (builder.constant_values().size() != program.constant_values.size())
            return fault(wave, step, "an indexed instruction asked for a constant of its own");
        builder.emit(go_on).data = step + 1 + step->immediate;
        steps = program.indexed->add(key, std::move(builder.steps()));
    }
    return steps->data();
}

const Step* skip_vector(Wave* wave, const Step* step) {
    return wave->mode & mode_vskip ? step + step->immediate : step + 1;
}

bool bind_register_index(const Instruction& instruction, StepBuilder& builder) {
    const isa::Operand* operands = instruction.operands;
    switch (instruction.opcode) {
        case Opcode::s_set_gpr_idx_on: {
            const uint32_t index = builder.source(instruction, operands[0]).offset;
            Step& step = builder.emit(set_index_on);
            step.source[0] = index;
            step.extra[0] = static_cast<uint32_t>(operands[1].immediate);
            return true;
        }
        case Opcode::s_set_gpr_idx_off:
            builder.emit(set_index_off);
            return true;
        case Opcode::s_set_gpr_idx_mode:
            builder.emit(set_index_operands).extra[0] = static_cast<uint32_t>(operands[0].immediate);
            return true;
        case Opcode::s_set_gpr_idx_idx: {
            const uint32_t index = builder.source(instruction, operands[0]).offset;
            builder.emit(set_index).source[0] = index;
            return true;
        }
        case Opcode::s_setvskip: {
            const uint32_t value = builder.source(instruction, operands[0]).offset,
                           bit = builder.source(instruction, operands[1]).offset;
            Step& step = builder.emit(set_vskip);
            step.source[0] = value;
            step.source[1] = bit;
            return true;
        }
        case Opcode::s_movrels_b32:
        case Opcode::s_movrels_b64: {
            Step& step = builder.emit(move_relative_source);
            step.destination = builder.offset_of(operands[0].code);
            step.extra[0] = operands[1].code;
            step.extra[1] = operands[0].dwords;
            const uint16_t code = operands[0].code;
            if (code == isa::code::exec_lo || code == isa::code::exec_hi) builder.emit_exec_update();
            return true;
        }
        case Opcode::s_movreld_b32:
        case Opcode::s_movreld_b64: {
            const uint32_t value = builder.source(instruction, operands[1]).offset;
            Step& step = builder.emit(move_relative_destination);
            step.source[0] = value;
            step.extra[0] = operands[0].code;
            step.extra[1] = operands[0].dwords;
            return true;
        }
        default:
            return false;
    }
}

}  // namespace hipkittens::simulator
