// kernels/heads/kinds.h: the arguments of copies that concatenate and split heads, and the kind of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::heads {

// Copies rows of a tensor, or some of their columns, to rows that are `step` apart. Everything is counted in units of 2 bytes: a
// copy is independent of the meaning of its bits.
struct Part {
    StridedRows from;
    void* to;
    int64_t step;
    RowCounts rows;
    uint32_t units;            // of a row
    uint32_t threads_per_row;  // units / 8, rounded up
    uint32_t aligned;          // rows are 4-byte aligned, in source and destination
    uint32_t first_workgroup;  // of the launch
    uint32_t padding;
};

inline constexpr int most_parts = 4;
struct CopyArguments {
    Part parts[most_parts];  // unused parts begin past the last workgroup of the launch
};

// Each thread copies 8 units of a row.
inline constexpr int threads = 256, units_of_thread = 8, unit_bytes = 2;

template <NoConfig config>
struct Copy;

namespace kinds {

struct copy : Kind<NoConfig, CopyArguments, Copy> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::heads
