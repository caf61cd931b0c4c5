// kernels/expert_rows/kinds.h: the arguments of row moves to experts and back, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../divisor.h"
#include "../element_type.h"
#include "../row.h"

namespace hipkittens::expert_rows {

// A pair is a token and one of its k choices; rows in expert order are at the places of pairs.
struct ExpertRowsArguments {
    const void* rows;    // of tokens for gather, otherwise in expert order
    const void* tokens;  // for dot only
    // For gather, the pair of each place; otherwise the place of each pair. Out-of-range values mean none.
    const int32_t* index;
    const float* weights;  // of pairs, or null
    void* result;
    int64_t row_step, token_step;  // elements
    uint32_t limit;                // valid values of index are below it
    uint32_t count;                // rows of the result; for dot, its elements
    uint32_t columns;
    Divisor choices;
    Divisor threads_per_row;  // columns / 8, rounded up
    uint32_t aligned;         // every row is 4-byte aligned
};

// Each thread of combine computes 8 columns of one row, each thread of gather those of several rows; each wave of dot one element.
inline constexpr int threads = 256, waves = threads / 64;
inline constexpr uint32_t gathered_places = 4;
constexpr uint32_t rows_of_threads(uint32_t places) {
    return (places + gathered_places - 1) / gathered_places;
}

template <ElementConfig config>
struct Gather;
template <ElementConfig config>
struct Combine;
template <ElementConfig config>
struct Dot;

namespace kinds {

struct gather : Kind<ElementConfig, ExpertRowsArguments, Gather> {};
struct combine : Kind<ElementConfig, ExpertRowsArguments, Combine> {};
struct dot : Kind<ElementConfig, ExpertRowsArguments, Dot> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::expert_rows
