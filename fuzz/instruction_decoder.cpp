// fuzz/instruction_decoder.cpp: any bytes as instructions of either target.
// SPDX-License-Identifier: MIT
//
// The first byte chooses the target; the rest is decoded from front to back as a loader would.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/property.h"
#include "isa/decode.h"
#include "isa/disassemble.h"
#include "isa/effects.h"
#include "isa/table.h"

using namespace hipkittens::isa;

namespace {

// The register file an operand begins in ends where no operand may go beyond.
int end_of_file(uint16_t first) {
    if (first >= code::first_agpr) return code::end;
    if (first >= code::first_vgpr) return code::first_agpr;
    return code::first_vgpr;
}

void check(const Instruction& instruction, const std::string& text) {
    const char* shown = text.c_str();
    HIPKITTENS_PROPERTY(instruction.row && instruction.row->is_on(instruction.target),
                        "%s is of another target", shown);
    HIPKITTENS_PROPERTY(instruction.row == &row_of(instruction.opcode), "%s has another opcode's row", shown);
    HIPKITTENS_PROPERTY(instruction.operand_count <= Instruction::max_operands, "%s has %d operands", shown,
                        instruction.operand_count);
    HIPKITTENS_PROPERTY(text.starts_with(mnemonic_text(instruction)), "%s does not begin with its mnemonic",
                        shown);
    HIPKITTENS_PROPERTY(std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; }),
                        "%s has a character that is not printable", shown);
    for (const Operand& operand : instruction) {
        if (operand.type == OperandType::immediate || operand.code == code::none) {
            HIPKITTENS_PROPERTY(!operand.is_written, "%s writes an operand that is no register", shown);
            continue;
        }
        HIPKITTENS_PROPERTY(operand.is_read || operand.is_written, "%s neither reads nor writes operand %u",
                            shown, operand.code);
        HIPKITTENS_PROPERTY(!operand.is_written || !operand.is_constant(), "%s writes a constant", shown);
        HIPKITTENS_PROPERTY(
            operand.is_constant() || operand.code + operand.dwords <= end_of_file(operand.code),
            "%s leaves its register file with operand %u of %u dwords", shown, operand.code, operand.dwords);
    }
    const Effects effect = effects(instruction);
    const bool is_memory = effect.unit == Unit::vector_memory || effect.unit == Unit::flat;
    HIPKITTENS_PROPERTY(effect.raises_vmcnt == is_memory, "%s: vmcnt and its unit disagree", shown);
    HIPKITTENS_PROPERTY((effect.matrix_passes != 0) == (effect.unit == Unit::matrix),
                        "%s: %d matrix passes and its unit disagree", shown, effect.matrix_passes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const Target target = data[0] & 1 ? Target::gfx950 : Target::gfx942;
    // Exact-sized heap copies let AddressSanitizer see a read one byte beyond.
    const std::vector<uint8_t> code(data + 1, data + size);
    for (size_t at = 0; at < code.size();) {
        Instruction instruction;
        if (!decode(target, code.data() + at, code.size() - at, static_cast<uint32_t>(at), &instruction)) {
            at += 4;
            continue;
        }
        const size_t bytes = instruction.bytes;
        HIPKITTENS_PROPERTY(bytes >= 4 && bytes <= 16 && bytes % 4 == 0 && bytes <= code.size() - at,
                            "an instruction of %zu bytes where %zu are left", bytes, code.size() - at);
        HIPKITTENS_PROPERTY(instruction.address == at, "an instruction at %zu says %u", at,
                            instruction.address);
        const std::string text = disassemble(instruction);
        check(instruction, text);

        // Its own bytes are all that counts, and it needs every one of them.
        const auto begin = code.begin() + static_cast<std::ptrdiff_t>(at);
        const std::vector<uint8_t> alone(begin, begin + static_cast<std::ptrdiff_t>(bytes));
        Instruction again;
        HIPKITTENS_PROPERTY(decode(target, alone.data(), bytes, static_cast<uint32_t>(at), &again) &&
                                again.bytes == bytes && disassemble(again) == text,
                            "%s is another instruction without what follows it", text.c_str());
        for (size_t fewer = 0; fewer < bytes; fewer += 4) {
            const std::vector<uint8_t> cut(begin, begin + static_cast<std::ptrdiff_t>(fewer));
            Instruction partial;
            HIPKITTENS_PROPERTY(!decode(target, cut.data(), fewer, 0, &partial) || partial.bytes <= fewer,
                                "%s was read from %zu of its %zu bytes", text.c_str(), fewer, bytes);
        }
        at += bytes;
    }
    return 0;
}
