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

struct Variants {
    template <class Visit>
    static constexpr void each(const Visit& visit) {
        using enum ElementType;
#define ROW(kind, name, targets, ...) visit(Row<kinds::kind>{#name, Targets::targets, {__VA_ARGS__}});
#include "variants.def"
#undef ROW
    }
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, Variants>;

}  // namespace hipkittens::scaled_square
