// kernels/gemm/dword_fragments.h: base tiles of 8-bit floats, read from LDS as the dwords that the matrix instruction takes.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::gemm {

using namespace kittens;

// load_part (tiles/load_shared_to_register.h) for a lane's two runs of 16 elements. Element-wise, loop-carried registers would be
// 32-byte vectors to the compiler, which takes them apart and reassembles them in every iteration.
template <class Part, class T, int R, int C, class Shape, class Tile>
KITTENS_DEVICE void load_dwords(rt<T, R, C, row_l, Shape>& destination, Tile source, int row, int col) {
    using Register = rt<T, R, C, row_l, Shape>;
    constexpr int run = b128_bytes / sizeof(T);
    static_assert(same_type<T, typename Tile::element> && Tile::access == Access::rows,
                  "a load does not convert, and registers are read from tiles swizzled for rows");
    static_assert(Shape::run == run && Register::per_lane == 2 * run, "two reads are a base tile");
    const Coordinate own = row_layout(Shape::value(), lane_id(), 0);
    const int lane_offset = Tile::offset(row + own.row, col + own.col);
#pragma unroll
    for (int i = Part::first_row; i < Part::last_row; ++i)
#pragma unroll
        for (int j = Part::first_col; j < Part::last_col; ++j) {
            const auto read = [&](int n) KITTENS_INLINE {
                const int run_col = j * Shape::cols + n * run * (wave_lanes / Shape::rows);
                return lds_read<b128>(source.data +
                                      stepped_offset<Tile>(lane_offset, i * Shape::rows, run_col));
            };
            destination.tiles[i][j] =
                __builtin_bit_cast(typename Register::fragment,
                                   __builtin_shufflevector(read(0), read(1), 0, 1, 2, 3, 4, 5, 6, 7));
        }
}

}  // namespace hipkittens::gemm
