// kernels/softmax/kinds.h: the arguments of a softmax, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::softmax {

// y_j = e^(x_j - max x) / sum_i e^(x_i - max x); for the gradient dy: dx_j = y_j (dy_j - sum_i y_i dy_i / sum_i y_i),
// where the divisor, 1 but for rounding, is left out for 16-bit elements.
struct SoftmaxArguments {
    StridedRows x;  // for the gradient: y
    void* result;   // y, or dx; with contiguous rows
    RowCounts rows;
    uint32_t columns : 28;
    uint32_t lane_bits : 3;  // 2^lane_bits lanes share a short row
    uint32_t wide : 1;       // rows are whole chunks of 8 elements and 4-byte aligned
    StridedRows dy;          // for the gradient only
};
inline constexpr int64_t largest_columns = (1 << 28) - 1;

// Rows of up to 8 elements per lane of a wave: a row uses as many lanes as it needs, and a lane processes several rows at a time.
// `wide` is a compile-time constant, since with few rows most of the time passes until instructions are fetched.
struct ShortConfig {
    ElementType element;
    bool wide;
    int rows_of_lane;
};
inline constexpr int short_waves = 2, short_threads = short_waves * 64, short_columns = 512;

// A row is held in the registers of `waves` waves, with `chunks` times 8 elements per lane; the part past that is read twice.
struct LongConfig {
    ElementType element;
    int waves, chunks;
    constexpr int capacity() const { return waves * 512 * chunks; }
};

template <ShortConfig config>
struct ShortForward;
template <LongConfig config>
struct LongForward;
template <ShortConfig config>
struct ShortBackward;
template <LongConfig config>
struct LongBackward;

namespace kinds {

struct short_forward : Kind<ShortConfig, SoftmaxArguments, ShortForward> {};
struct long_forward : Kind<LongConfig, SoftmaxArguments, LongForward> {};
struct short_backward : Kind<ShortConfig, SoftmaxArguments, ShortBackward> {};
struct long_backward : Kind<LongConfig, SoftmaxArguments, LongBackward> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::softmax
