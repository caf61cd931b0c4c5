// tiles/register_tile.h: rt, a matrix distributed over the registers of one wave.
// SPDX-License-Identifier: MIT
#pragma once
#include "element.h"
#include "lane_layout.h"

namespace kittens {

// A grid of base tiles. lane_layout.h defines which lane holds which element.
template <class T, int Rows, int Cols, class Layout = row_l, class Shape = rt_16x32>
struct rt {
    using element = T;
    using layout = Layout;
    using shape = Shape;
    static constexpr int rows = Rows, cols = Cols;
    static constexpr int height = Rows / Shape::rows, width = Cols / Shape::cols, count = height * width;
    static constexpr int per_lane = Shape::rows * Shape::cols / wave_lanes;
    static_assert(Rows % Shape::rows == 0 && Cols % Shape::cols == 0,
                  "a register tile is a whole number of base tiles");

    template <class Element>
    struct of_lane {
        using type = vec<Element, per_lane>;
    };
    template <class Element>
        requires is_float6<Element>
    struct of_lane<Element> {
        using type = codes_of_6_bits<Element>;
    };
    using fragment = typename of_lane<T>::type;
    fragment tiles[height][width];

    KITTENS_DEVICE fragment& base(int n) { return tiles[n / width][n % width]; }
    KITTENS_DEVICE const fragment& base(int n) const { return tiles[n / width][n % width]; }

    static constexpr Coordinate at(int lane, int tile_row, int tile_col, int index) {
        const Coordinate inside = Layout::at(Shape::value(), lane, index);
        return {tile_row * Shape::rows + inside.row, tile_col * Shape::cols + inside.col};
    }
};

}  // namespace kittens
