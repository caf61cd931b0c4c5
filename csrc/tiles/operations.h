// tiles/operations.h: what maps and reductions do to single values.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"

// A device function object for one expression of its arguments.
#define KITTENS_UNARY(name, expression)        \
    struct name {                              \
        template <class T>                     \
        KITTENS_DEVICE static T apply(T x) {   \
            return static_cast<T>(expression); \
        }                                      \
    };
#define KITTENS_BINARY(name, expression)          \
    struct name {                                 \
        template <class T>                        \
        KITTENS_DEVICE static T apply(T x, T y) { \
            return static_cast<T>(expression);    \
        }                                         \
    };

// 16-bit elements are computed in f32 and rounded once, to nearest even.
namespace kittens::operation {

KITTENS_DEVICE float wide(float x) { return x; }
KITTENS_DEVICE float wide(bf16 x) { return static_cast<float>(x); }
KITTENS_DEVICE float wide(half x) { return static_cast<float>(x); }

KITTENS_UNARY(identity, x)
KITTENS_UNARY(negate, -wide(x))
KITTENS_UNARY(absolute, absolute_value(wide(x)))
KITTENS_UNARY(relu, wide(x) < 0.0f ? 0.0f : wide(x))
KITTENS_UNARY(exponential2, exponential_base_2(wide(x)))
KITTENS_UNARY(exponential, exponential_base_2(wide(x) * 1.4426950408889634f))
KITTENS_UNARY(logarithm2, logarithm_base_2(wide(x)))
KITTENS_UNARY(logarithm, logarithm_base_2(wide(x)) * 0.6931471805599453f)
KITTENS_UNARY(square_root, hardware_square_root(wide(x)))
KITTENS_UNARY(reciprocal, hardware_reciprocal(wide(x)))
KITTENS_UNARY(reciprocal_square_root, hardware_reciprocal_square_root(wide(x)))

KITTENS_BINARY(sum, wide(x) + wide(y))
KITTENS_BINARY(difference, wide(x) - wide(y))
KITTENS_BINARY(product, wide(x) * wide(y))
KITTENS_BINARY(quotient, wide(x) / wide(y))
KITTENS_BINARY(maximum, larger(wide(x), wide(y)))
KITTENS_BINARY(minimum, smaller(wide(x), wide(y)))

}  // namespace kittens::operation

#undef KITTENS_UNARY
#undef KITTENS_BINARY
