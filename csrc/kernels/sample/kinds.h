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
    // A row is shared by so many workgroups, each with `share` neighbouring columns, whole chunks. Of one: it writes `chosen`.
    // Of more: each its best column, [row][part], from which the kind `join` chooses.
    uint32_t parts, share;
    uint32_t padding;
    uint64_t* bests;
};

// A column and the order key of its value, such that the best is the greatest: the first of equal ones.
constexpr uint64_t packed_best(uint32_t key, uint32_t column) { return uint64_t{key} << 32 | ~column; }
constexpr uint32_t column_of(uint64_t best) { return ~static_cast<uint32_t>(best); }

// The least temperature above 0.
inline constexpr float least_temperature = 1e-5f;

inline constexpr int waves = 16, threads = waves * 64;
// Workgroups of a launch, about: two for each compute unit of the largest device.
inline constexpr int enough_workgroups = 608;
// A wave joins the parts of a row.
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
