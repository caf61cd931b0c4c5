// kernels/delta_rule/block_decays.h: decays of channels within a block of rows of a chunk.
// SPDX-License-Identifier: MIT
#pragma once
#include "token_decays.h"

namespace hipkittens::delta_rule {

// Of 8 channels of a row, over the rows of its block of 16: e to the sums of logarithms up to it, and of those behind it.
struct BlockDecays {
    kittens::eight here, behind;

    // A lane's row of the block is lane % 16.
    KITTENS_DEVICE explicit BlockDecays(kittens::eight logarithms) : here(logarithms) {
#pragma unroll
        for (int e = 0; e < 8; ++e) behind[e] = from_below<1>(logarithms[e]);
        extend<1>(), extend<2>(), extend<4>(), extend<8>();
#pragma unroll
        for (int e = 0; e < 8; ++e) here[e] = decay(here[e]), behind[e] = decay(behind[e]);
    }
    // Of the row `distance` before, or behind; 0 beside the block (DPP row_shr, row_shl).
    template <int distance>
    KITTENS_DEVICE static float from_above(float value) {
        return kittens::moved_or_zero<0x110 + distance>(value);
    }
    template <int distance>
    KITTENS_DEVICE static float from_below(float value) {
        return kittens::moved_or_zero<0x100 + distance>(value);
    }
    // From `distance` rows to twice as many.
    template <int distance>
    KITTENS_DEVICE void extend() {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            here[e] += from_above<distance>(here[e]);
            behind[e] += from_below<distance>(behind[e]);
        }
    }
};

}  // namespace hipkittens::delta_rule
