// kernels/mul_add/kinds.h: what is passed to a x + b, and the kind of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../divisor.h"
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::mul_add {

// Where a factor or summand comes from: it is a number that all elements share, one in memory, or one for each element.
enum class Source : int32_t { number, one, each };

struct MulAddArguments {
    StridedRows x, a, b;  // a and b where there is one for each element, else their data alone
    void* result;         // rows one after the other; may be x, a or b
    RowCounts rows;
    uint32_t columns;
    Divisor threads_per_row;  // columns / 8, rounded up
    uint32_t aligned;         // every row begins on 4 bytes
    Source source_a, source_b;
    uint32_t float_a, float_b;  // one in memory is a float, not of x's type
    float number_a, number_b;
};

// Each thread computes 8 columns of a row.
inline constexpr int threads = 256;

template <ElementConfig config>
struct MulAdd;

namespace kinds {

struct mul_add : Kind<ElementConfig, MulAddArguments, MulAdd> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::mul_add
