// kernels/activation/kinds.h: what is passed to a gated activation, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::activation {

// silu(x) = x / (1 + e^-x); gelu_tanh(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
enum class Activation { silu, gelu_tanh };

struct GatedConfig {
    ElementType element;
    Activation activation;
};

// Each thread computes 8 columns of a row.
inline constexpr int threads = 256, thread_columns = 8;

// A row of x is `columns` of the gate, then as many of what the gate multiplies.
struct GatedArguments {
    StridedRows x;
    StridedRows dy;  // of the gradient alone
    void* result;    // y, or the gradient of x; its rows are dense
    RowCounts rows;
    uint32_t columns;          // of y
    uint32_t threads_per_row;  // columns / thread_columns, rounded up
    uint32_t aligned;          // every row and both halves of x begin on 4 bytes
};

template <GatedConfig config>
struct GatedForward;
template <GatedConfig config>
struct GatedBackward;

namespace kinds {

struct gated_forward : Kind<GatedConfig, GatedArguments, GatedForward> {};
struct gated_backward : Kind<GatedConfig, GatedArguments, GatedBackward> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
    using enum Activation;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::activation
