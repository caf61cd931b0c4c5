// kernels/mul_add/kinds.h: the arguments of a x + b, and the kind of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../divisor.h"
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::mul_add {

// The source of a factor or summand: a number shared by all elements, a single value in memory, or one value per element.
enum class Source : int32_t { number, one, each };

struct MulAddArguments {
    StridedRows x, a, b;  // a and b if there is one value per element; otherwise only their data
    void* result;         // contiguous rows; may be x, a or b
    RowCounts rows;
    uint32_t columns;
    Divisor threads_per_row;  // columns / 8, rounded up
    uint32_t aligned;         // every row is 4-byte aligned
    Source source_a, source_b;
    uint32_t float_a, float_b;  // the single value in memory is a float instead of x's type
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
