// kernels/topk/kinds.h: the arguments of a selection of the greatest elements of rows, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::topk {

// A lane holds `chunks` runs of 8 elements of a row; `waves` waves share the row.
struct SelectConfig {
    ElementType element;
    int waves, chunks;

    constexpr int columns() const { return waves * chunks * 512; }
    // Elements that are sorted at a time. Rows of a single wave have little LDS each.
    constexpr int entries() const { return waves == 1 ? 128 : 2048; }
    constexpr int rows_per_workgroup() const { return waves == 1 ? 4 : 1; }
    constexpr int threads() const { return waves * rows_per_workgroup() * 64; }
};

inline constexpr int most_selected = 2048;

// Workgroups x, y: rows, parts of a row. Each part of a row has its own results.
struct SelectArguments {
    StridedRows x;
    RowCounts rows;
    const int32_t* starts;  // per row, the first valid column, or null: all are valid
    const int32_t* ends;    // and the one past the last
    const int32_t* ids;     // labels of the columns, in rows of `columns`; or null: their index
    void*
        values;  // of x's type: [row][part][k], the greatest first if `sorted`, the first of equal ones first
    void* indices;  // int64 if `wide_indices`, else int32; -1 where the part does not have k columns
    uint32_t columns, k;
    uint32_t part_columns;  // the number of a row's columns in each part
    uint32_t parts;
    uint32_t wide_indices : 1, smallest : 1, sorted : 1;
    uint32_t aligned;  // rows are 4-byte aligned
};

template <SelectConfig config>
struct Select;

namespace kinds {

struct select : Kind<SelectConfig, SelectArguments, Select> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::topk
