// tiles/lane_layout.h: which (row, column) of a base tile each register of each lane holds.
// SPDX-License-Identifier: MIT
#pragma once

namespace kittens {

// A base tile is what one matrix instruction reads or writes. In row layout, a lane owns one row and
// `run` adjacent columns at a time; in column layout, rows and columns are exchanged.
struct BaseShape {
    int rows, cols, run;
};

struct Coordinate {
    int row, col;
    constexpr bool operator==(const Coordinate&) const = default;
};

constexpr int elements_per_lane(BaseShape shape) { return shape.rows * shape.cols / 64; }

// CDNA3 ISA manual 7.1.4, CDNA4 ISA manual 7.1.5: the register layouts of all matrix instructions follow one rule.
constexpr Coordinate row_layout(BaseShape shape, int lane, int element) {
    const int lanes_along_run = 64 / shape.rows;
    return {lane % shape.rows, shape.run * (lane / shape.rows) + element % shape.run +
                                   element / shape.run * shape.run * lanes_along_run};
}

constexpr Coordinate col_layout(BaseShape shape, int lane, int element) {
    const Coordinate transposed = row_layout({shape.cols, shape.rows, shape.run}, lane, element);
    return {transposed.col, transposed.row};
}

struct row_l {
    static constexpr bool is_row = true;
    static constexpr Coordinate at(BaseShape shape, int lane, int element) {
        return row_layout(shape, lane, element);
    }
};
struct col_l {
    static constexpr bool is_row = false;
    static constexpr Coordinate at(BaseShape shape, int lane, int element) {
        return col_layout(shape, lane, element);
    }
};

template <int Rows, int Cols, int Run>
struct base_shape {
    static constexpr int rows = Rows, cols = Cols, run = Run;
    // A function, because device code would load a static member from memory.
    static constexpr BaseShape value() { return {Rows, Cols, Run}; }
};

// Operands of the 16-bit shapes 16x16x32 and 32x32x16. gfx942 splits them into two instructions along the
// run: any order of K is correct as long as both operands agree.
using rt_16x32 = base_shape<16, 32, 8>;
using rt_32x16 = base_shape<32, 16, 8>;
// Accumulators of all shapes.
using rt_16x16 = base_shape<16, 16, 4>;
using rt_32x32 = base_shape<32, 32, 4>;
// Operands of the f32 shape 16x16x4.
using rt_16x4 = base_shape<16, 4, 1>;

template <class Shape>
using transposed_shape = base_shape<Shape::cols, Shape::rows, Shape::run>;

constexpr bool covers_each_element_once(BaseShape shape, Coordinate (*layout)(BaseShape, int, int)) {
    bool seen[64 * 64] = {};
    for (int lane = 0; lane < 64; ++lane)
        for (int element = 0; element < elements_per_lane(shape); ++element) {
            const Coordinate at = layout(shape, lane, element);
            if (at.row >= shape.rows || at.col >= shape.cols || seen[at.row * shape.cols + at.col])
                return false;
            seen[at.row * shape.cols + at.col] = true;
        }
    return true;
}
static_assert(covers_each_element_once({16, 32, 8}, row_layout) &&
              covers_each_element_once({32, 16, 8}, row_layout));
static_assert(covers_each_element_once({16, 16, 4}, col_layout) &&
              covers_each_element_once({32, 32, 4}, col_layout));
static_assert(covers_each_element_once({16, 4, 1}, row_layout) &&
              covers_each_element_once({32, 2, 1}, row_layout));
static_assert(row_layout({16, 32, 8}, 17, 3) == Coordinate{1, 11}, "A operand of 16x16x32");
static_assert(col_layout({16, 16, 4}, 17, 3) == Coordinate{7, 1}, "accumulator of 16x16");
static_assert(col_layout({32, 32, 4}, 33, 5) == Coordinate{13, 1}, "accumulator of 32x32");

}  // namespace kittens
