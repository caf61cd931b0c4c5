// kernels/activation/kinds.h: what is passed to an activation, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::activation {

// silu(x) = x / (1 + e^-(alpha x)); gelu_tanh(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)));
// gelu(x) = x / 2 (1 + erf(x / sqrt 2)). swiglu is gpt-oss' gate: silu(gate) (other + 1).
enum class Activation : int32_t { silu, gelu_tanh, gelu, relu, tanh, swiglu };

struct ActivationConfig {
    ElementType element;
    bool gated;
};

// Each thread computes 8 columns of a row.
inline constexpr int threads = 256, columns_of_thread = 8;

struct ActivationArguments {
    StridedRows x;
    StridedRows other;  // what the gate x multiplies
    StridedRows dy;     // of the gradient alone
    void* result;       // y, or the gradient of x
    void* dother;
    int64_t result_step;  // from row to row of result and dother
    RowCounts rows;
    uint32_t columns;          // of y
    uint32_t threads_per_row;  // columns / 8, rounded up
    uint32_t aligned;          // every row begins on 4 bytes
    Activation activation;
    float alpha;
    float limit;  // of a gated row: gate <= limit, |other| <= limit
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
