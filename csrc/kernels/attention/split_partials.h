// kernels/attention/split_partials.h: dK and dV of each split of the query heads of a group.
// SPDX-License-Identifier: MIT
#pragma once
#include "dq_accumulator.h"

namespace hipkittens::attention {

// Workgroups of one tile of keys write their gradients as f32, and one reader adds them in the order of the splits, no
// matter which was written first. In memory 32 keys are stored together, their dK before their dV, each as 32 x 32
// tiles in the order of a row-layout accumulator: four registers of 64 lanes at a time.
inline constexpr int partial_rows = 32;
constexpr int partial_index(int row, int col) {
    return col / 8 * (partial_rows * 8) + (col / 4 % 2 * partial_rows + row % partial_rows) * 4 + col % 4;
}

// A split's dK or dV of the 32 keys from `row` on.
KITTENS_DEVICE float* split_partials_at(const BackwardArguments& arguments, const Sequence& sequence,
                                        int batch, int key_head, int split, int row, bool values) {
    const int64_t first = first_block_of_keys(arguments, sequence, batch, key_head) * statistics_block;
    return arguments.split_partials + split * arguments.floats_per_split +
           ((first + row) * 2 + values * partial_rows) * arguments.dq_width;
}

// `gradient`: a wave's 32 keys from `row` on, as 32 x 32 accumulators side by side.
template <class Accumulator, int count>
KITTENS_DEVICE void store_partial(const Accumulator (&gradient)[count], const BackwardArguments& arguments,
                                  const Sequence& sequence, const TileCoordinate& coordinate, int row,
                                  bool values) {
    float* to = split_partials_at(arguments, sequence, coordinate.batch, coordinate.head, coordinate.split,
                                  row, values) +
                recompute_lane_id() * 4;
#pragma unroll
    for (int j = 0; j < count; ++j)
#pragma unroll
        for (int e = 0; e < 16; e += 4)
            *reinterpret_cast<vec<float, 4>*>(to + partial_index(0, j * 32 + 2 * e)) =
                vec<float, 4>{gradient[j][e], gradient[j][e + 1], gradient[j][e + 2], gradient[j][e + 3]};
}

}  // namespace hipkittens::attention
