// simulator/checks/register_effects.cpp: determines which registers an instruction reads and writes.
// SPDX-License-Identifier: MIT
#include "simulator/checks/register_effects.h"

#include <string>
#include <string_view>

#include "isa/effects.h"
#include "isa/table.h"

namespace hipkittens::simulator::checks {

using isa::Encoding;
using isa::Opcode;

uint32_t register_at(uint32_t wave_offset) {
    if (wave_offset < layout::vectors) return (wave_offset - layout::scalars) / layout::scalar_row_bytes;
    return first_vector + (wave_offset - layout::vectors) / layout::vector_row_bytes;
}

std::string register_name(uint32_t number, uint32_t accum_offset) {
    if (number >= first_vector) {
        const uint32_t vector = number - first_vector;
        return vector < accum_offset ? "v" + std::to_string(vector)
                                     : "a" + std::to_string(vector - accum_offset);
    }
    static const char* const special[] = {"flat_scratch_lo", "flat_scratch_hi", "xnack_mask_lo",
                                          "xnack_mask_hi",   "vcc_lo",          "vcc_hi"};
    if (number >= isa::code::flat_scratch_lo && number <= isa::code::vcc_hi)
        return special[number - isa::code::flat_scratch_lo];
    if (number == isa::code::m0) return "m0";
    if (number == isa::code::exec_lo) return "exec_lo";
    if (number == isa::code::exec_hi) return "exec_hi";
    return "s" + std::to_string(number);
}

void RegisterSet::add(uint32_t first, uint32_t registers) {
    for (uint32_t number = first; number < first + registers && number < register_count; ++number) {
        uint32_t i = 0;
        while (i < count && words[i].word != number / 64) ++i;
        if (i == count) words[count++] = {number / 64, 0};
        words[i].bits |= uint64_t{1} << number % 64;
    }
}

void RegisterSet::add(const RegisterSet& other) {
    for (uint32_t from = 0; from < other.count; ++from) {
        uint32_t i = 0;
        while (i < count && words[i].word != other.words[from].word) ++i;
        if (i == count) words[count++] = {other.words[from].word, 0};
        words[i].bits |= other.words[from].bits;
    }
}

bool RegisterSet::has(uint32_t number) const {
    for (uint32_t i = 0; i < count; ++i) {
        if (words[i].word == number / 64) return words[i].bits >> number % 64 & 1;
    }
    return false;
}

bool RegisterSet::overlaps(const RegisterSet& other) const {
    for (uint32_t i = 0; i < count; ++i) {
        for (uint32_t j = 0; j < other.count; ++j) {
            if (words[i].word == other.words[j].word && (words[i].bits & other.words[j].bits)) return true;
        }
    }
    return false;
}

namespace {

bool is_cache_control(Opcode opcode) {
    switch (opcode) {
        case Opcode::buffer_inv:
        case Opcode::buffer_wbl2:
        case Opcode::ds_nop:
        case Opcode::s_dcache_inv:
        case Opcode::s_dcache_wb:
        case Opcode::s_dcache_inv_vol:
        case Opcode::s_dcache_wb_vol:
            return true;
        default:
            return false;
    }
}

Queue queue_of(const isa::Instruction& instruction) {
    if (is_cache_control(instruction.opcode)) return Queue::none;
    switch (instruction.encoding) {
        case Encoding::smem:
            return Queue::scalar;
        case Encoding::ds:
            return Queue::lds;
        case Encoding::flat:
            return Queue::flat;
        case Encoding::mubuf:
        case Encoding::mtbuf:
        case Encoding::global:
        case Encoding::scratch:
            return Queue::vector_memory;
        default:
            return Queue::none;
    }
}

// Moves used by compilers and whole-tile copies: reading a register that nobody wrote is no error until the
// copy is used.
bool copies(Opcode opcode) {
    switch (opcode) {
        case Opcode::v_mov_b32:
        case Opcode::v_mov_b64:
        case Opcode::v_pk_mov_b32:
        case Opcode::v_accvgpr_read_b32:
        case Opcode::v_accvgpr_write_b32:
        case Opcode::v_cndmask_b32:
        case Opcode::s_mov_b32:
        case Opcode::s_mov_b64:
        case Opcode::v_readfirstlane_b32:
        case Opcode::v_readlane_b32:
        case Opcode::v_writelane_b32:
            return true;
        default:
            return false;
    }
}

bool ignores_exec(const isa::Instruction& instruction, const isa::Effects& effects) {
    return effects.unit == isa::Unit::matrix || !effects.reads_exec ||
           instruction.opcode == Opcode::v_readfirstlane_b32;
}

// Whole registers stored in scratch: this is how compilers spill, including pairs of which only one half was
// written.
bool saves(const isa::Instruction& instruction, int position) {
    const std::string_view name = instruction.row->mnemonic;
    return instruction.encoding == Encoding::scratch && name.starts_with("scratch_store_dword") &&
           position == 1;
}

struct DwordRange {
    uint32_t first, count;
};

// The dwords of an operand that the result depends on.
DwordRange dwords_read(const isa::Instruction& instruction, int position) {
    const isa::Operand& operand = instruction.operands[position];
    const uint32_t dwords = operand.dwords ? operand.dwords : 1;
    // op_sel and op_sel_hi choose the half used for the low and the high result.
    if (operand.type == isa::OperandType::pk_f32 && dwords == 2 && position > 0) {
        const bool low = instruction.op_sel >> (position - 1) & 1,
                   high = instruction.op_sel_hi >> (position - 1) & 1;
        if (low == high) return {low ? 1u : 0u, 1};
    }
    // LLVM uses it to multiply and add 32 bits, and leaves the upper half of the addend undefined: the lower
    // half of the result does not depend on it.
    if ((instruction.opcode == Opcode::v_mad_u64_u32 || instruction.opcode == Opcode::v_mad_i64_i32) &&
        dwords == 2 && position == 4)
        return {0, 1};
    return {0, dwords};
}

bool is_control(const isa::Instruction& instruction, const isa::Effects& effects) {
    if (effects.unit == isa::Unit::branch || effects.unit == isa::Unit::message) return true;
    switch (instruction.opcode) {
        case Opcode::s_endpgm:
        case Opcode::s_barrier:
        case Opcode::s_waitcnt:
        case Opcode::s_trap:
            return true;
        default:
            return false;
    }
}

}  // namespace

Effects effects_of(const isa::Instruction& instruction, const StepBuilder& builder) {
    Effects result;
    const isa::Effects effects = isa::effects(instruction);
    for (int position = 0; position < instruction.operand_count; ++position) {
        const isa::Operand& operand = instruction.operands[position];
        if (operand.code == isa::code::none || operand.type == isa::OperandType::immediate) continue;
        const bool is_register = operand.code < 128 || operand.is_vgpr() || operand.is_agpr();
        if (!is_register) continue;
        const uint32_t first = register_at(builder.offset_of(operand.code));
        if (operand.is_read && saves(instruction, position)) {
            result.saved_first = first;
            result.saved_count = operand.dwords ? operand.dwords : 1;
        }
        if (operand.is_read) {
            const auto [skipped, dwords] = dwords_read(instruction, position);
            result.reads.add(first + skipped, dwords);
        }
        if (operand.is_written) {
            result.writes.add(first, operand.dwords ? operand.dwords : 1);
            if (operand.code == isa::code::exec_lo || operand.code == isa::code::exec_hi)
                result.writes_exec = true;
        }
    }
    const std::string_view name = instruction.row->mnemonic;
    result.writes_exec |= name.find("saveexec") != std::string_view::npos || name.starts_with("v_cmpx") ||
                          name.find("wrexec") != std::string_view::npos;
    result.queue = queue_of(instruction);
    result.copies = copies(instruction.opcode) && !instruction.has_dpp && !instruction.has_sdwa;
    result.ignores_exec = ignores_exec(instruction, effects);
    result.partly_writes = instruction.opcode == Opcode::v_writelane_b32;
    result.is_control = is_control(instruction, effects);
    return result;
}

}  // namespace hipkittens::simulator::checks
