// isa/effects.h: which wait counters an instruction raises, and what kind of unit it occupies.
// SPDX-License-Identifier: MIT
#pragma once

#include "isa/instruction.h"

namespace hipkittens::isa {

// clang-format off
enum class Unit : uint8_t {
    salu, smem, valu, transcendental, matrix, lds, vector_memory, flat, branch, message, internal,
};
// clang-format on

struct Effects {
    Unit unit;
    bool raises_vmcnt;    // loads, stores and atomics through buffer/global/flat/scratch, direct-to-LDS loads
    bool raises_lgkmcnt;  // LDS, scalar memory, flat
    bool reads_exec;      // result depends on EXEC
    uint8_t matrix_passes;  // MFMA: 4-cycle passes, else 0
};

Effects effects(const Instruction& instruction);

// The fields of s_waitcnt's simm16 on gfx9: vmcnt 6 bits, expcnt 3, lgkmcnt 4.
struct WaitCounts {
    uint8_t vmcnt, expcnt, lgkmcnt;
};
WaitCounts decode_wait_counts(uint16_t simm16);

}  // namespace hipkittens::isa
