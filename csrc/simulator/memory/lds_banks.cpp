// simulator/memory/lds_banks.cpp: the phase tables of gfx942 and gfx950.
// SPDX-License-Identifier: MIT
#include "simulator/memory/lds_banks.h"

namespace hipkittens::simulator::memory {

namespace {

constexpr uint64_t lanes(int first, int last) {
    uint64_t mask = 0;
    for (int lane = first; lane <= last; ++lane) mask |= uint64_t{1} << lane;
    return mask;
}

// Groups of `width` consecutive lanes.
constexpr LdsPhases consecutive(uint8_t banks, int width, bool measured) {
    LdsPhases phases{banks, static_cast<uint8_t>(64 / width), measured, {}};
    for (int i = 0; i < 64 / width; ++i) phases.lanes[i] = lanes(i * width, i * width + width - 1);
    return phases;
}

// Eight lanes from two groups 16 lanes apart: published for ds_read_b128 of gfx942 (ROCm blog "LDS bank
// conflict"), measured for ds_read_b96 of gfx950 (HipKittens, analysis/paper_experiments/phases).
constexpr LdsPhases eight_of_two_groups(bool measured) {
    const uint64_t low[4] = {lanes(0, 3) | lanes(20, 23), lanes(4, 7) | lanes(16, 19),
                             lanes(8, 11) | lanes(28, 31), lanes(12, 15) | lanes(24, 27)};
    return {32,
            8,
            measured,
            {low[0], low[1], low[2], low[3], low[0] << 32, low[1] << 32, low[2] << 32, low[3] << 32}};
}

// Measured for ds_read_b128 of gfx950 (same source).
constexpr LdsPhases sixteen_of_three_groups() {
    const uint64_t low[2] = {lanes(0, 3) | lanes(12, 15) | lanes(20, 27),
                             lanes(4, 11) | lanes(16, 19) | lanes(28, 31)};
    return {64, 4, true, {low[0], low[1], low[0] << 32, low[1] << 32}};
}

// In the order of LdsAccess. Unpublished accesses use the narrowest rule that fits the number of
// banks.
constexpr LdsPhases gfx942_table[lds_access_count] = {
    consecutive(32, 32, false), consecutive(32, 16, false), eight_of_two_groups(false),
    eight_of_two_groups(true),  consecutive(32, 32, false), consecutive(32, 16, false),
    consecutive(32, 8, false),  consecutive(32, 8, true),
};
constexpr LdsPhases gfx950_table[lds_access_count] = {
    consecutive(64, 32, false), consecutive(64, 32, true),  eight_of_two_groups(true),
    sixteen_of_three_groups(),  consecutive(32, 32, false), consecutive(32, 16, true),
    consecutive(32, 8, false),  consecutive(32, 8, false),
};

}  // namespace

const LdsPhases& lds_phases(isa::Target target, LdsAccess access) {
    return (target == isa::Target::gfx942 ? gfx942_table : gfx950_table)[static_cast<int>(access)];
}

uint32_t lds_conflict_cycles(const LdsPhases& phases, const uint32_t* address, uint64_t active,
                             uint32_t bytes) {
    const uint32_t dwords = bytes > 4 ? bytes / 4 : 1;
    uint32_t extra = 0;
    for (int phase = 0; phase < phases.count; ++phase) {
        uint32_t wanted[64][64];  // distinct dwords in each bank
        uint8_t depth[64] = {};
        uint32_t worst = 1;
        for (uint64_t left = phases.lanes[phase] & active; left; left &= left - 1) {
            const uint32_t first = address[__builtin_ctzll(left)] / 4;
            for (uint32_t dword = first; dword < first + dwords; ++dword) {
                const uint32_t bank = dword % phases.banks;
                bool known = false;
                for (uint32_t i = 0; i < depth[bank] && !known; ++i) known = wanted[bank][i] == dword;
                if (known) continue;
                wanted[bank][depth[bank]++] = dword;
                if (depth[bank] > worst) worst = depth[bank];
            }
        }
        extra += worst - 1;
    }
    return extra;
}

}  // namespace hipkittens::simulator::memory
