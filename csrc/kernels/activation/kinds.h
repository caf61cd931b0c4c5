// kernels/activation/kinds.h: the arguments of an activation, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../activation_kind.h"
#include "../divisor.h"
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::activation {

struct ActivationConfig {
    ElementType element;
    bool gated;
};

// Each thread computes 8 columns of a row.
inline constexpr int threads = 256;

struct ActivationArguments {
    StridedRows x;
    StridedRows other;  // multiplied by the activated gate x
    StridedRows dy;     // for the gradient only
    const void* bias;  // for gated rows, or null: 2 columns elements of their type, added to x, then to other
    void* result;      // y, or the gradient of x
    void* dother;
    int64_t result_step;  // stride between rows of result and dother
    RowCounts rows;
    uint32_t columns;         // of y
    Divisor threads_per_row;  // columns / 8, rounded up
    uint32_t aligned;         // every row is 4-byte aligned
    Activation activation;
    float alpha;
    float limit;  // for a gated row: gate <= limit, |other| <= limit
};

template <ActivationConfig config>
struct Forward;
template <ActivationConfig config>
struct Backward;

namespace kinds {

struct forward : Kind<ActivationConfig, ActivationArguments, Forward> {};
struct backward : Kind<ActivationConfig, ActivationArguments, Backward> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::activation
