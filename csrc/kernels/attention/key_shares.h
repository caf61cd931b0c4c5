// kernels/attention/key_shares.h: what each part of a group's query heads adds to the gradients of keys and values.
// SPDX-License-Identifier: MIT
#pragma once
#include "query_sums.h"

namespace hipkittens::attention {

// Workgroups that share a tile of keys write their sums as 32-bit floats, and one reader adds them in the order of the
// parts, whichever was written first. In memory 32 keys lie together, their dK before their dV, each of them tiles of
// 32 x 32 as an accumulator in row layout holds them: four registers of 64 lanes at a time.
inline constexpr int share_rows = 32;
constexpr int key_share_index(int row, int col) {
    return col / 8 * (share_rows * 8) + (col / 4 % 2 * share_rows + row % share_rows) * 4 + col % 4;
}

// The share of a part in dK or dV of the 32 keys from `row` on.
KITTENS_DEVICE float* key_shares_at(const BackwardArguments& arguments, const Sequence& sequence, int batch,
                                    int key_head, int part, int row, bool values) {
    const int64_t first = first_block_of_keys(arguments, sequence, batch, key_head) * statistics_block;
    return arguments.key_shares + part * arguments.floats_per_part +
           ((first + row) * 2 + values * share_rows) * arguments.sums_width;
}

// `gradient`: a wave's 32 keys from `row` on, as accumulators of 32 x 32 side by side.
template <class Accumulator, int count>
KITTENS_DEVICE void store_key_share(const Accumulator (&gradient)[count], const BackwardArguments& arguments,
                                    const Sequence& sequence, const TileCoordinate& place, int row,
                                    bool values) {
    float* to = key_shares_at(arguments, sequence, place.batch, place.head, place.split, row, values) +
                kittens::recompute_lane_id() * 4;
#pragma unroll
    for (int j = 0; j < count; ++j)
#pragma unroll
        for (int e = 0; e < 16; e += 4)
            *reinterpret_cast<kittens::vec<float, 4>*>(to + key_share_index(0, j * 32 + 2 * e)) =
                kittens::vec<float, 4>{gradient[j][e], gradient[j][e + 1], gradient[j][e + 2],
                                       gradient[j][e + 3]};
}

}  // namespace hipkittens::attention
