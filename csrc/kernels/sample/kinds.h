// kernels/sample/kinds.h: what is passed to a choice of one column of each row, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::sample {

// Of each row the column with the largest x_j / T - log(e_j + eps), the first of equal ones: that of the largest p_j / (e_j + eps)
// with p = softmax(x / T). Where T is 0 or nobody has drawn e, that of the largest x_j.
struct ChooseArguments {
    StridedRows x;
    const float* exponentials;  // [row][column], or null
    const float* temperatures;  // of each row
    int64_t* chosen;
    int64_t exponential_step, temperature_step;  // from row to row
    RowCounts rows;
    uint32_t columns;
    uint32_t wide;  // rows are whole chunks of 8 elements, and begin on 4 bytes
    float eps;
    uint32_t padding;
};

// The least temperature above 0.
inline constexpr float least_temperature = 1e-5f;

// A row is a workgroup's.
inline constexpr int waves = 16, threads = waves * 64;

template <ElementConfig config>
struct Choose;

namespace kinds {

struct choose : Kind<ElementConfig, ChooseArguments, Choose> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::sample
