// simulator/machine/mode_regions.cpp: see mode_regions.h.
// SPDX-License-Identifier: MIT
#include "simulator/machine/mode_regions.h"

#include <algorithm>

namespace hipkittens::simulator {

namespace {

using isa::Instruction;
using isa::Opcode;

constexpr uint32_t both = mode_gpr_index_enabled | mode_vskip;

// The value of an inline constant or literal, -1 for a register.
int64_t constant_of(const Instruction& instruction, const isa::Operand& operand) {
    if (operand.code >= 128 && operand.code <= 192) return operand.code - 128;
    if (operand.code > 192 && operand.code <= 208) return static_cast<uint32_t>(192 - operand.code);
    return operand.code == isa::code::literal ? int64_t{instruction.literal} : -1;
}

uint32_t after(const Instruction& instruction, uint32_t bits) {
    switch (instruction.opcode) {
        case Opcode::s_set_gpr_idx_on:
            return bits | mode_gpr_index_enabled;
        case Opcode::s_set_gpr_idx_off:
            return bits & ~mode_gpr_index_enabled;
        case Opcode::s_setvskip: {
            const int64_t value = constant_of(instruction, instruction.operands[0]);
            const int64_t bit = constant_of(instruction, instruction.operands[1]);
            const bool known_off = value == 0 || (value >= 0 && bit >= 0 && !(value >> (bit & 31) & 1));
            return known_off ? bits & ~mode_vskip : bits | mode_vskip;
        }
        case Opcode::s_setreg_b32:
        case Opcode::s_setreg_imm32_b32: {
            const uint32_t field = static_cast<uint16_t>(instruction.operands[0].immediate);
            const uint32_t first = field >> 6 & 31, last = first + (field >> 11);
            if ((field & 63) != 1) return bits;
            if (first <= 27 && 27 <= last) bits |= mode_gpr_index_enabled;
            if (first <= 28 && 28 <= last) bits |= mode_vskip;
            return bits;
        }
        default:
            return bits;
    }
}

struct Flow {
    bool falls_through, branches, anywhere;
};
Flow flow_of(const Instruction& instruction) {
    switch (instruction.opcode) {
        case Opcode::s_branch:
            return {false, true, false};
        case Opcode::s_cbranch_scc0:
        case Opcode::s_cbranch_scc1:
        case Opcode::s_cbranch_vccz:
        case Opcode::s_cbranch_vccnz:
        case Opcode::s_cbranch_execz:
        case Opcode::s_cbranch_execnz:
        case Opcode::s_call_b64:
            return {true, true, false};
        case Opcode::s_setpc_b64:
            return {false, false, true};
        case Opcode::s_swappc_b64:
            return {true, false, true};
        case Opcode::s_endpgm:
            return {false, false, false};
        default:
            return {true, false, false};
    }
}

}  // namespace

std::vector<uint32_t> find_mode_regions(const std::vector<Instruction>& instructions) {
    std::vector<uint32_t> regions(instructions.size());
    std::vector<size_t> work;
    const auto reach = [&](size_t index, uint32_t bits) {
        if (index >= instructions.size() || (regions[index] | bits) == regions[index]) return;
        regions[index] |= bits;
        work.push_back(index);
    };
    // The bits start as 0; only instructions that set them start a region.
    for (size_t index = 0; index < instructions.size(); ++index) {
        if (const uint32_t bits = after(instructions[index], 0)) reach(index + 1, bits);
    }
    while (!work.empty()) {
        const size_t index = work.back();
        work.pop_back();
        const Instruction& instruction = instructions[index];
        const uint32_t bits = after(instruction, regions[index]);
        const Flow flow = flow_of(instruction);
        if (flow.falls_through) reach(index + 1, bits);
        if (flow.anywhere && bits) {
            std::fill(regions.begin(), regions.end(), both);
            return regions;
        }
        if (!flow.branches) continue;
        for (const isa::Operand& operand : instruction) {
            if (operand.type != isa::OperandType::immediate) continue;
            const int64_t target = int64_t{instruction.address} + 4 + 4 * int64_t{operand.immediate};
            const auto place =
                std::lower_bound(instructions.begin(), instructions.end(), target,
                                 [](const Instruction& i, int64_t address) { return i.address < address; });
            if (place != instructions.end() && place->address == target)
                reach(static_cast<size_t>(place - instructions.begin()), bits);
        }
    }
    return regions;
}

}  // namespace hipkittens::simulator
