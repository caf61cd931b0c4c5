// kernels/attention/gradient_rows.h: rows of a gradient, from a wave's registers to memory.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "arguments.h"

namespace hipkittens::attention {

// Rows first_row .. of a sequence of row_count, which begins at row `begin` of its tensor. A lane stores runs of four columns.
template <class T, class Gradient>
KITTENS_DEVICE void store_rows(const Gradient& gradient, const TensorArgument& destination,
                               const Sequence& sequence, int head, int64_t begin, int first_row,
                               int row_count, int head_dim, float factor) {
    using Shape = typename Gradient::shape;
    const kittens::Coordinate own = kittens::row_layout(Shape::value(), kittens::recompute_lane_id(), 0);
    const int64_t row = first_row + own.row;
    if (row >= row_count) return;
    T* to = static_cast<T*>(const_cast<void*>(destination.data)) + sequence.batch * destination.batch_stride +
            head * destination.head_stride + (begin + row) * destination.row_stride + own.col;
#pragma unroll
    for (int j = 0; j < Gradient::width; ++j)
#pragma unroll
        for (int e = 0; e < Gradient::per_lane; e += 4) {
            const auto& all = gradient.tiles[0][j];
            const kittens::vec<float, 4> run = {all[e], all[e + 1], all[e + 2], all[e + 3]};
            const int col = j * Shape::cols + kittens::row_layout(Shape::value(), 0, e).col;
            if (col + own.col < head_dim)
                *reinterpret_cast<kittens::vec<T, 4>*>(to + col) =
                    __builtin_convertvector(run * factor, kittens::vec<T, 4>);
        }
}

}  // namespace hipkittens::attention
