// kernels/scaled_square/kinds.h: what is passed to scaled_square, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../row.h"

namespace hipkittens::scaled_square {

inline constexpr int workgroup_threads = 256;

struct SquareArguments {
    const void* x;
    const void* grad;  // of the gradient alone
    void* result;
    int64_t count;
    float scale;
};

template <ElementConfig config>
struct Square;
template <ElementConfig config>
struct SquareGradient;

namespace kinds {

struct square : Kind<ElementConfig, SquareArguments, Square> {};
struct square_backward : Kind<ElementConfig, SquareArguments, SquareGradient> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::scaled_square
