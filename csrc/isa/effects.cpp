// isa/effects.cpp: wait counters, units and matrix passes of an instruction.
// SPDX-License-Identifier: MIT
#include "isa/effects.h"

#include <initializer_list>
#include <string_view>

#include "isa/table.h"

namespace hipkittens::isa {
namespace {

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
    for (std::string_view prefix : prefixes) {
        if (name.starts_with(prefix)) return true;
    }
    return false;
}

// Operations of the quarter-rate unit.
bool is_transcendental(std::string_view name) {
    return starts_with_any(name, {"v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_"});
}

int matrix_passes(const Instruction& instruction) {
    const std::string_view name = instruction.row->mnemonic;
    const int passes = instruction.row->passes();
    // CDNA4 has half of CDNA3's f64 matrix rate.
    if (name == "v_mfma_f64_16x16x4_f64" && instruction.target == Target::gfx950) return 2 * passes;
    // Formats 0 and 1 are fp8 and bf8: half the rate of the six- and four-bit ones.
    if (name.find("f8f6f4") != std::string_view::npos && (instruction.cbsz < 2 || instruction.blgp < 2))
        return 2 * passes;
    return passes;
}

Unit unit_of(const Instruction& instruction) {
    const std::string_view name = instruction.row->mnemonic;
    switch (instruction.encoding) {
        case Encoding::sop1:
        case Encoding::sop2:
        case Encoding::sopc:
        case Encoding::sopk: {
            const bool jumps = starts_with_any(name, {"s_setpc", "s_swappc", "s_rfe", "s_call", "s_cbranch"});
            return jumps ? Unit::branch : Unit::salu;
        }
        case Encoding::sopp:
            if (starts_with_any(name, {"s_branch", "s_cbranch"})) return Unit::branch;
            return name.starts_with("s_sendmsg") ? Unit::message : Unit::internal;
        case Encoding::smem:
            return Unit::smem;
        case Encoding::mai:
        case Encoding::mfma_scale:
            return name.starts_with("v_accvgpr") ? Unit::valu : Unit::matrix;
        case Encoding::ds:
            return Unit::lds;
        case Encoding::flat:
            return Unit::flat;
        case Encoding::mubuf:
        case Encoding::mtbuf:
        case Encoding::global:
        case Encoding::scratch:
            return Unit::vector_memory;
        default:
            return is_transcendental(name) ? Unit::transcendental : Unit::valu;
    }
}

// Vector instructions that ignore EXEC.
bool ignores_exec(std::string_view name) {
    return starts_with_any(name, {"v_readlane", "v_writelane", "v_mfma", "v_smfmac", "v_nop", "v_clrexcp"});
}

}  // namespace

Effects effects(const Instruction& instruction) {
    const std::string_view name = instruction.row->mnemonic;
    Effects result{};
    result.unit = unit_of(instruction);
    // buffer_wbl2 and buffer_inv are counted too: the memory model waits for them with vmcnt(0).
    result.raises_vmcnt = result.unit == Unit::vector_memory || result.unit == Unit::flat;
    result.raises_lgkmcnt = result.unit == Unit::smem || result.unit == Unit::flat ||
                            result.unit == Unit::message || (result.unit == Unit::lds && name != "ds_nop");
    if (result.unit == Unit::matrix) result.matrix_passes = static_cast<uint8_t>(matrix_passes(instruction));
    switch (result.unit) {
        case Unit::valu:
        case Unit::transcendental:
            result.reads_exec = !ignores_exec(name);
            break;
        case Unit::lds:
        case Unit::flat:
        case Unit::vector_memory:
            result.reads_exec = instruction.operand_count > 0;
            break;
        default:
            break;
    }
    if (name == "s_cbranch_execz" || name == "s_cbranch_execnz") result.reads_exec = true;
    for (const Operand& operand : instruction) {
        if (operand.is_read &&
            (operand.code == code::exec_lo || operand.code == code::exec_hi || operand.code == code::execz)) {
            result.reads_exec = true;
        }
    }
    return result;
}

WaitCounts decode_wait_counts(uint16_t simm16) {
    return {static_cast<uint8_t>((simm16 & 0xf) | (simm16 >> 14 & 3) << 4),
            static_cast<uint8_t>(simm16 >> 4 & 7), static_cast<uint8_t>(simm16 >> 8 & 0xf)};
}

}  // namespace hipkittens::isa
