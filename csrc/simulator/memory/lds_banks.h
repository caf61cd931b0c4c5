// simulator/memory/lds_banks.h: which lanes LDS serves together, and what that costs.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "isa/instruction.h"

namespace hipkittens::simulator::memory {

enum class LdsAccess : uint8_t {
    read_b32,
    read_b64,
    read_b96,
    read_b128,
    write_b32,
    write_b64,
    write_b96,
    write_b128
};
inline constexpr int lds_access_count = 8;

// LDS serves a wave's access in phases, each for a set of lanes, with one dword per bank and phase.
struct LdsPhases {
    uint8_t banks;  // 4 bytes wide
    uint8_t count;
    bool measured;  // false: an assumption, see lds_banks.cpp
    uint64_t lanes[8];
};

const LdsPhases& lds_phases(isa::Target target, LdsAccess access);

// Cycles beyond one per phase: in every phase the busiest bank serves one distinct dword per cycle, and lanes
// that access the same dword share it. `address` holds the byte offsets in LDS of 64 lanes; lanes outside
// `active` do not count.
uint32_t lds_conflict_cycles(const LdsPhases& phases, const uint32_t* address, uint64_t active,
                             uint32_t bytes);

}  // namespace hipkittens::simulator::memory
