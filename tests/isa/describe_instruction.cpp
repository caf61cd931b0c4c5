// tests/isa/describe_instruction.cpp: what decode() and effects() say about an instruction, as text for
// Python.
// SPDX-License-Identifier: MIT
#include <cstring>
#include <string>

#include "isa/decode.h"
#include "isa/effects.h"
#include "isa/table.h"

using namespace hipkittens::isa;

namespace {

std::string operand_text(const Operand& operand) {
    std::string text = operand.type == OperandType::immediate ? "#" + std::to_string(operand.immediate)
                       : operand.code == code::none           ? std::string("off")
                       : operand.is_vgpr() ? "v" + std::to_string(operand.code - code::first_vgpr)
                       : operand.is_agpr() ? "a" + std::to_string(operand.code - code::first_agpr)
                                           : std::to_string(operand.code);
    text += "x" + std::to_string(operand.dwords) + ":";
    text += std::string(operand.is_read ? "r" : "") + (operand.is_written ? "w" : "");
    return text + (operand.is_implicit ? "i" : "");
}

}  // namespace

// "operands | unit vmcnt lgkmcnt exec passes", or "" if the bytes are no instruction.
extern "C" __attribute__((visibility("default"))) void describe(int target, const uint8_t* bytes, size_t size,
                                                                char* text, size_t text_size) {
    Instruction instruction;
    std::string result;
    if (decode(target == 942 ? Target::gfx942 : Target::gfx950, bytes, size, 0, &instruction)) {
        for (const Operand& operand : instruction) result += operand_text(operand) + " ";
        const Effects done = effects(instruction);
        result += "| " + std::to_string(static_cast<int>(done.unit)) + " " +
                  std::to_string(done.raises_vmcnt) + " " + std::to_string(done.raises_lgkmcnt) + " " +
                  std::to_string(done.reads_exec) + " " + std::to_string(done.matrix_passes);
    }
    std::strncpy(text, result.c_str(), text_size - 1);
}

extern "C" __attribute__((visibility("default"))) int wait_counts(int simm16) {
    const WaitCounts counts = decode_wait_counts(static_cast<uint16_t>(simm16));
    return counts.vmcnt << 16 | counts.expcnt << 8 | counts.lgkmcnt;
}

extern "C" __attribute__((visibility("default"))) int row_is_consistent(int index) {
    const Row& row = rows()[static_cast<size_t>(index)];
    return &row_of(row.opcode) == &row && static_cast<int>(row.opcode) == index + 1;
}
