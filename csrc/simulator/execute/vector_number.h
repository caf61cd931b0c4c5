// simulator/execute/vector_number.h: minimum, maximum, exponents and scaling of floats, as the ISA manual defines them.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/execute/vector_meaning.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// The integers that overlay a float vector, and its fields.
template <class Float>
struct Fields;
template <>
struct Fields<f32x16> {
    using Bits = u32x16;
    using Int = i32x16;
    static constexpr int mantissa_bits = 23;
    static constexpr int32_t bias = 127, special = 255, one = 1;
};
template <>
struct Fields<f64x8> {
    using Bits = u64x8;
    using Int = i64x8;
    static constexpr int mantissa_bits = 52;
    static constexpr int64_t bias = 1023, special = 2047, one = 1;
};

template <class Float>
HIPKITTENS_LARGE auto is_signaling(Float a) {
    using Bits = typename Fields<Float>::Bits;
    return is_nan(a) & (((Bits)a >> (Fields<Float>::mantissa_bits - 1) & 1) == 0);
}

// One NaN: the result is the other source. A signaling NaN is quieted and returned (MODE.IEEE, which compute
// kernels have set).
template <class Float>
HIPKITTENS_LARGE Float number_or_nan(Float a, Float b, Float result) {
    const auto unordered = is_nan(a) | is_nan(b);
    if (__builtin_expect(!any(unordered), 1)) return result;
    result = pick(unordered, pick(is_nan(a), b, a), result);
    result = pick(is_signaling(b), quiet(b), result);
    return pick(is_signaling(a), quiet(a), result);
}
// -0 is less than +0, so the sign bits of equal values decide: their AND for the maximum, their OR for the minimum.
template <class Float>
HIPKITTENS_LARGE Float maximum_number(Float a, Float b) {
    using Bits = typename Fields<Float>::Bits;
    return number_or_nan(a, b,
                         pick(is_greater(a, b), a, pick(is_greater(b, a), b, (Float)((Bits)a & (Bits)b))));
}
template <class Float>
HIPKITTENS_LARGE Float minimum_number(Float a, Float b) {
    using Bits = typename Fields<Float>::Bits;
    return number_or_nan(a, b,
                         pick(is_greater(b, a), a, pick(is_greater(a, b), b, (Float)((Bits)a | (Bits)b))));
}
// IEEE 754-2019 maximum and minimum: any NaN propagates.
template <class Float>
HIPKITTENS_LARGE Float maximum(Float a, Float b) {
    const Float result = maximum_number(a, b);
    return pick(is_nan(a) | is_nan(b), first_nan(result, a, b), result);
}
template <class Float>
HIPKITTENS_LARGE Float minimum(Float a, Float b) {
    const Float result = minimum_number(a, b);
    return pick(is_nan(a) | is_nan(b), first_nan(result, a, b), result);
}

template <class Float>
HIPKITTENS_LARGE Float median_number(Float a, Float b, Float c) {
    const auto unordered = is_nan(a) | is_nan(b) | is_nan(c);
    const Float largest = maximum_number(maximum_number(a, b), c);
    const Float middle = pick(largest == a, maximum_number(b, c),
                              pick(largest == b, maximum_number(a, c), maximum_number(a, b)));
    return pick(unordered, minimum_number(minimum_number(a, b), c), middle);
}

// Fraction in [0, 1): the subtraction may round up to 1.
HIPKITTENS_LARGE f32x16 fraction(f32x16 a) {
    const f32x16 difference = a - round_to_integral<Rounding::down>(a);
    return pick(difference >= 1.0f, f32x16{} + 0x1.fffffep-1f, difference);
}
HIPKITTENS_LARGE f64x8 fraction(f64x8 a) {
    const f64x8 difference = a - round_to_integral<Rounding::down>(a);
    return pick(difference >= 1.0, f64x8{} + 0x1.fffffffffffffp-1, difference);
}

// f64 * 2^n for any n: multiplied in steps that stay exact, so that it is rounded once.
HIPKITTENS_LARGE f64x8 load_exponent(f64x8 a, i64x8 n) {
    n = pick(n < -2200, i64x8{} - 2200, pick(n > 2200, i64x8{} + 2200, n));
    for (int pass = 0; pass < 2; ++pass) {
        // 2^-1022 * 2^53 keeps the significand's bits above the denormal step until the last factor.
        a = pick(n < -1022, a * 0x1p-969, pick(n > 1023, a * 0x1p1023, a));
        n = pick(n < -1022, n + 969, pick(n > 1023, n - 1023, n));
    }
    n = pick(n < -1022, i64x8{} - 1022, pick(n > 1023, i64x8{} + 1023, n));
    return a * (f64x8)((n + 1023) << 52);
}
HIPKITTENS_LARGE f32x16 load_exponent(f32x16 a, i32x16 n) {
    n = pick(n < -300, i32x16{} - 300, pick(n > 300, i32x16{} + 300, n));
    return scale_by_power(a, __builtin_convertvector(n, f32x16));
}

// a as m * 2^e with |m| in [1/2, 1). Infinity, NaN and zero: m = a, e = 0.
template <class Float>
HIPKITTENS_LARGE auto exponent_field(Float a) {
    using F = Fields<Float>;
    return (typename F::Int)((typename F::Bits)a >> F::mantissa_bits & F::special);
}
template <class Float>
HIPKITTENS_LARGE Float normalized(Float a) {  // a denormal times a power of two, computed from its bits
    using F = Fields<Float>;
    const auto mantissa = (typename F::Int)a & ((F::one << F::mantissa_bits) - 1);
    const Float magnitude = __builtin_convertvector(mantissa, Float);
    const auto sign = (typename F::Bits)a >> (sizeof(a[0]) * 8 - 1) << (sizeof(a[0]) * 8 - 1);
    return pick(exponent_field(a) == 0, (Float)((typename F::Bits)magnitude | sign), a);
}
template <class Float>
HIPKITTENS_LARGE auto frexp_exponent(Float a) {
    using F = Fields<Float>;
    using Int = typename F::Int;
    const Int field = exponent_field(a), of_denormal = exponent_field(normalized(a));
    const Int exponent =
        pick(field == 0, of_denormal - (F::bias - 2 + F::mantissa_bits + F::bias), field - (F::bias - 1));
    return pick((field == F::special) | (a == 0), Int{}, exponent);
}
template <class Float>
HIPKITTENS_LARGE Float frexp_mantissa(Float a) {
    using F = Fields<Float>;
    using Bits = typename F::Bits;
    const Bits cleared = (Bits)normalized(a) & ~((Bits{} + F::special) << F::mantissa_bits);
    const Float mantissa = (Float)(cleared | (Bits{} + (F::bias - 1)) << F::mantissa_bits);
    return pick((exponent_field(a) == F::special) | (a == 0), pick(a != a, quiet(a), a), mantissa);
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
