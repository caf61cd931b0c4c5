// kernels/softmax/kinds.h: what is passed to a softmax, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::softmax {

// y_j = e^(x_j - max x) / sum_i e^(x_i - max x); of the gradient dy: dx_j = y_j (dy_j - sum_i dy_i y_i).
struct SoftmaxArguments {
    StridedRows x;  // of the gradient: y
    void* result;   // y, or dx; rows one after the other
    RowCounts rows;
    uint32_t columns : 28;
    uint32_t lane_bits : 3;  // 2^lane_bits lanes share a short row
    uint32_t wide : 1;       // rows are whole chunks of 8 elements and begin on 4 bytes
    StridedRows dy;          // of the gradient alone
};
inline constexpr int64_t largest_columns = (1 << 28) - 1;

// Rows of up to 8 elements for each lane of a wave: as many lanes as a row needs, and several rows of a lane at a time. `wide` is
// fixed, since most of the time of a few rows goes by until their instructions are there.
struct ShortConfig {
    ElementType element;
    bool wide;
    int rows_of_lane;
};
inline constexpr int short_waves = 2, short_threads = short_waves * 64, short_columns = 512;

// A row is held in the registers of `waves` waves, `chunks` times 8 elements in each lane; what is beyond that is read twice.
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
