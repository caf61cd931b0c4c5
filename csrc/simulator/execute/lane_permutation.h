// simulator/execute/lane_permutation.h: which lane each lane reads from under a DPP control.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/execute/lanes.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// Lanes without a source (shifted in from outside, or in rows a broadcast does not reach) are not in `valid`.
struct LanePermutation {
    alignas(64) uint32_t row_source[16];  // within a row of 16, if the control permutes within rows
    uint8_t source[64];
    uint64_t valid = 0;
    bool within_rows = false;
};

// nullptr: a reserved control.
const LanePermutation* lane_permutation(uint16_t control);

// Lanes whose source exists and is enabled in `exec`.
uint64_t valid_lanes(const LanePermutation& permutation, uint64_t exec);

// Handlers: permute source[0] as data specifies into the scratch row `destination`. immediate (bound_ctrl):
// lanes without an enabled source read 0.
const Step* permute_within_rows(Wave* wave, const Step* step);
const Step* permute_across_rows(Wave* wave, const Step* step);

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
