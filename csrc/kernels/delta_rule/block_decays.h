// kernels/delta_rule/block_decays.h: decays of channels within a block of rows of a chunk, and of whole blocks.
// SPDX-License-Identifier: MIT
#pragma once
#include "chunk_inverse.h"
#include "logarithm_parts.h"
#include "token_decays.h"

namespace hipkittens::delta_rule {

// For 8 channels of a row, within its block of 16 rows: e to the sum of logarithms up to the row, and to that of the rows after it.
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
    // The value of the row `distance` before, or after; 0 outside the block (DPP row_shr, row_shl).
    template <int distance>
    KITTENS_DEVICE static float from_above(float value) {
        return kittens::moved_or_zero<0x110 + distance>(value);
    }
    template <int distance>
    KITTENS_DEVICE static float from_below(float value) {
        return kittens::moved_or_zero<0x100 + distance>(value);
    }
    // Extends the sums from `distance` rows to twice as many.
    template <int distance>
    KITTENS_DEVICE void extend() {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            here[e] += from_above<distance>(here[e]);
            behind[e] += from_below<distance>(behind[e]);
        }
    }
};

// Per block of a chunk, for some channels, in LDS: the block's decay, and the parts of the sum of its logarithms.
struct BlockTotals {
    using eight = kittens::eight;
    enum class Total { decay, coarse, fine };
    static constexpr int channels = 32, blocks = system_tiles, bytes = 3 * blocks * channels * 4;
    kittens::shared_byte* base;
    int first;  // of the lane's 8 channels

    KITTENS_DEVICE kittens::shared_byte* at(Total which, int block) const {
        return base + ((static_cast<int>(which) * blocks + block) * channels + first) * 4;
    }
    KITTENS_DEVICE void write(Total which, int block, eight values) const {
        kittens::lds_write(four(values.lo), at(which, block));
        kittens::lds_write(four(values.hi), at(which, block) + 16);
    }
    KITTENS_DEVICE eight read(Total which, int block) const {
        eight result;
        result.lo = kittens::lds_read<four>(at(which, block));
        result.hi = kittens::lds_read<four>(at(which, block) + 16);
        return result;
    }
    // Called by the wave of the block, with BlockDecays::here of its rows and their logarithms.
    KITTENS_DEVICE void share(int block, eight here, eight logarithms) const {
        eight coarse, fine;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const LogarithmParts of_row(logarithms[e]);
            coarse[e] = kittens::sum_of_16_lanes(of_row.coarse);
            fine[e] = kittens::sum_of_16_lanes(of_row.fine);
        }
        if (kittens::lane_id() % 16 < 15) return;
        write(Total::decay, block, here);
        write(Total::coarse, block, coarse);
        write(Total::fine, block, fine);
    }
    KITTENS_DEVICE eight decay_of(int block) const { return read(Total::decay, block); }
    KITTENS_DEVICE eight decay_of_chunk() const {
        eight coarse = read(Total::coarse, 0), fine = read(Total::fine, 0);
#pragma unroll
        for (int block = 1; block < blocks; ++block) {
            coarse += read(Total::coarse, block);
            fine += read(Total::fine, block);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) coarse[e] = decay(LogarithmParts(coarse[e], fine[e]).sum());
        return coarse;
    }
};

}  // namespace hipkittens::delta_rule
