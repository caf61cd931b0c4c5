// kernels/sample/kinds.h: the arguments of choosing one column of each row, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::sample {

// For each row, the column with the largest x_j / T - log(e_j + eps), the first of equal ones: that of the largest
// p_j / (e_j + eps) with p = softmax(x / T). If T is 0 or there is no e, that of the largest x_j.
struct ChooseArguments {
    StridedRows x;
    const float* exponentials;  // [row][column], or null
    const float* temperatures;  // per row
    int64_t* chosen;
    int64_t exponential_step, temperature_step;  // stride between rows
    RowCounts rows;
    uint32_t columns;
    uint32_t wide;  // rows are whole chunks of 8 elements and 4-byte aligned
    float eps;
    // A row is shared by `parts` workgroups, each with `share` adjacent columns, in whole chunks. A single one writes `chosen`.
    // With more, each writes its best column, [row][part], from which the kind `join` chooses.
    uint32_t parts, share;
    uint32_t padding;
    uint64_t* bests;
};

// A column and the order key of its value, packed so that the best is the greatest: the first of equal ones.
constexpr uint64_t packed_best(uint32_t key, uint32_t column) { return uint64_t{key} << 32 | ~column; }
constexpr uint32_t column_of(uint64_t best) { return ~static_cast<uint32_t>(best); }

// The smallest temperature above 0.
inline constexpr float least_temperature = 1e-5f;

inline constexpr int waves = 16, threads = waves * 64;
// Approximate number of workgroups of a launch: two per compute unit of the largest device.
inline constexpr int enough_workgroups = 608;
// One wave combines the parts of a row.
inline constexpr int join_threads = 64, most_parts = 64;

template <ElementConfig config>
struct Choose;
template <NoConfig config>
struct Join;

namespace kinds {

struct choose : Kind<ElementConfig, ChooseArguments, Choose> {};
struct join : Kind<NoConfig, ChooseArguments, Join> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::sample
