// simulator/execute/vector_division.cpp: the helpers of IEEE division: v_div_scale, v_div_fmas, v_div_fixup.
// SPDX-License-Identifier: MIT
//
// Rules of the ISA manual. Where its text is silent or cannot be correct, the choice is the one that makes the sequence emitted
// by LLVM (AMDGPU's LowerFDIV32, LowerFDIV64) an IEEE division:
//   v_div_scale  returns its source if nothing is scaled; a huge denominator is scaled down if the quotient is denormal
//   v_div_fmas   scales back by the inverse of v_div_scale's factor: up for a large quotient, down for a small one
//   v_div_fixup  overflows according to the difference of the exponents
#include "simulator/execute/vector_number.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

template <class Float>
struct Division;
template <>
struct Division<f32x16> {
    static constexpr double step = 0x1p64, large = 0x1p126;
    static constexpr int near_overflow = 96, tiny_numerator = 23, underflow = -150, overflow = 128;
    static constexpr float smallest_normal = 0x1p-126f;
};
template <>
struct Division<f64x8> {
    static constexpr double step = 0x1p128, large = 0x1p1022;
    static constexpr int near_overflow = 768, tiny_numerator = 53, underflow = -1075, overflow = 1024;
    static constexpr double smallest_normal = 0x1p-1022;
};

template <class Float>
HIPKITTENS_LARGE Float absolute(Float a) {
    using Bits = typename Fields<Float>::Bits;
    return (Float)((Bits)a << 1 >> 1);
}
template <class Float>
HIPKITTENS_LARGE Float with_sign_of(Float a, typename Fields<Float>::Bits sign) {
    using Bits = typename Fields<Float>::Bits;
    return (Float)((Bits)absolute(a) | sign);
}
template <class Float>
HIPKITTENS_LARGE Float infinity() {
    using F = Fields<Float>;
    return (Float)((typename F::Bits{} + F::special) << F::mantissa_bits);
}
template <class Float>
HIPKITTENS_LARGE auto is_denormal(Float a) {
    using Bits = typename Fields<Float>::Bits;
    return (exponent_field(a) == 0) & (((Bits)a << 1) != 0);
}

// Returns which of a source, its larger and its smaller multiple v_div_scale produces, and whether v_div_fmas
// has to scale.
template <class Float>
HIPKITTENS_LARGE auto scaled(Float source, Float denominator, Float numerator) {
    using D = Division<Float>;
    const auto exponent_gap = exponent_field(numerator) - exponent_field(denominator);
    const Float quotient = absolute(numerator / denominator),
                up = source * static_cast<decltype(+source[0])>(D::step),
                down = source * static_cast<decltype(+source[0])>(1 / D::step);
    const auto zero = (numerator == 0) | (denominator == 0);
    const auto overflows = ~zero & (exponent_gap >= D::near_overflow);
    const auto denominator_denormal = ~zero & ~overflows & is_denormal(denominator);
    const auto rest = ~zero & ~overflows & ~denominator_denormal;
    const auto reciprocal_denormal = rest &
                                     (absolute(denominator) > static_cast<decltype(+source[0])>(D::large)) &
                                     (absolute(denominator) != infinity<Float>());
    const auto quotient_denormal = rest & (quotient < D::smallest_normal) & (quotient != 0);
    const auto tiny =
        rest & ~reciprocal_denormal & ~quotient_denormal & (exponent_field(numerator) <= D::tiny_numerator);
    const auto is_denominator = source == denominator, is_numerator = source == numerator;

    Float result = source;
    result = pick(tiny, up, result);
    result = pick(quotient_denormal & ~reciprocal_denormal & is_numerator, up, result);
    result = pick(reciprocal_denormal & (~quotient_denormal | is_denominator), down, result);
    result = pick(denominator_denormal, up, result);
    result = pick(overflows & is_denominator, up, result);
    result = pick(zero, quiet(infinity<Float>()), result);
    return WithBit<Float, decltype(overflows | zero)>{result, overflows | quotient_denormal};
}
template <class Float>
HIPKITTENS_LARGE auto scaled(Wide<Float> a, Wide<Float> b, Wide<Float> c) {
    const auto low = scaled(a.first, b.first, c.first), high = scaled(a.second, b.second, c.second);
    return WithBit<Wide<Float>, Wide<i64x8>>{{low.value, high.value}, {low.bit, high.bit}};
}

template <class Float>
HIPKITTENS_LARGE Float fixed_up(Float quotient, Float denominator, Float numerator) {
    using Bits = typename Fields<Float>::Bits;
    using D = Division<Float>;
    const Bits sign = ((Bits)denominator ^ (Bits)numerator) & (Bits)(-Float{});
    const Float infinite = infinity<Float>(), invalid = -quiet(infinite);
    const auto zero_below = denominator == 0, zero_above = numerator == 0;
    const auto infinite_below = absolute(denominator) == infinite,
               infinite_above = absolute(numerator) == infinite;
    Float result = with_sign_of(quotient, sign);
    const auto gap = exponent_field(numerator) - exponent_field(denominator);
    result = pick(gap < D::underflow, with_sign_of(Float{}, sign), result);
    result = pick(gap > D::overflow, with_sign_of(infinite, sign), result);
    result = pick(infinite_below | zero_above, with_sign_of(Float{}, sign), result);
    result = pick(zero_below | infinite_above, with_sign_of(infinite, sign), result);
    result = pick((zero_below & zero_above) | (infinite_below & infinite_above), invalid, result);
    result = pick(denominator != denominator, quiet(denominator), result);
    return pick(numerator != numerator, quiet(numerator), result);
}
HIPKITTENS_LARGE f32x16 fixed_up_half(f32x16 quotient, f32x16 denominator, f32x16 numerator) {
    const u32x16 sign = ((u32x16)denominator ^ (u32x16)numerator) & 0x80000000;
    const f32x16 infinite = infinity<f32x16>(), invalid = -quiet(infinite);
    const auto zero_below = denominator == 0, zero_above = numerator == 0;
    const auto infinite_below = absolute(denominator) == infinite,
               infinite_above = absolute(numerator) == infinite;
    f32x16 result = with_sign_of(quotient, sign);
    result = pick(infinite_below | zero_above, with_sign_of(f32x16{}, sign), result);
    result = pick(zero_below | infinite_above, with_sign_of(infinite, sign), result);
    result = pick((zero_below & zero_above) | (infinite_below & infinite_above), invalid, result);
    result = pick(denominator != denominator, quiet(denominator), result);
    return pick(numerator != numerator, quiet(numerator), result);
}

// fma, scaled back where VCC indicates that v_div_scale scaled, with one rounding.
template <class Float>
HIPKITTENS_LARGE Float scale_back(Float c) {
    using Element = decltype(+c[0]);
    return pick(exponent_field(c) > Fields<Float>::bias,
                Float{} + static_cast<Element>(Division<Float>::step),
                Float{} + static_cast<Element>(1 / Division<Float>::step));
}
HIPKITTENS_LARGE f32x16 scaled_fma(f32x16 a, f32x16 b, f32x16 c, i32x16 scale) {
    const Wide<f64x8> x = widen(a), y = widen(b), z = widen(c);
    const Wide<f64x8> back = widen(pick(scale, scale_back(c), f32x16{} + 1.0f));
    f32x16 result =
        narrow(Wide<f64x8>{add_round_to_odd<f64x8, i64x8>(x.first * y.first, z.first) * back.first,
                           add_round_to_odd<f64x8, i64x8>(x.second * y.second, z.second) * back.second});
    settle_nan(result, a, b, c);
    return result;
}

// (a * b + c) / 2^128 if that is denormal: rounded to odd in 64 bits first, then once to f64.
[[maybe_unused]] __attribute__((noinline)) double denormal_quotient(double a, double b, double c) {
    const double product = a * b, product_rest = __builtin_fma(a, b, -product);
    long double sum = static_cast<long double>(c) + product;
    const long double part = sum - c;
    const long double rest = (c - (sum - part)) + (product - part) + product_rest;
    uint64_t significand;
    memcpy(&significand, &sum, sizeof significand);
    if (rest != 0 && !(significand & 1)) {
        significand += (rest < 0) == (sum < 0) ? 1 : -1;
        memcpy(&sum, &significand, sizeof significand);
    }
    return static_cast<double>(sum * 0x1p-128L);
}
HIPKITTENS_LARGE f64x8 scaled_fma(f64x8 a, f64x8 b, f64x8 c, i64x8 scale) {
    f64x8 result = fma(a, b, c);
    settle_nan(result, a, b, c);
    const f64x8 scaled = result * scale_back(c);
    const i64x8 denormal = scale & (absolute(scaled) <= Division<f64x8>::smallest_normal) & (result != 0);
    result = pick(scale, scaled, result);
    if (__builtin_expect(any(denormal), 0)) {
        for (int lane = 0; lane < 8; ++lane) {
            if (denormal[lane]) result[lane] = denormal_quotient(a[lane], b[lane], c[lane]);
        }
    }
    return result;
}
const Step* div_fmas_f32(Wave* wave, const Step* step) {
    const Operands operands(step);
    for (int quarter = 0; quarter < 4; ++quarter) {
        const i32x16 scale = Access<LaneMask>::read(wave, layout::vcc, 0, quarter);
        store_quarter(
            wave, operands.destination, quarter,
            scaled_fma(operands.read<f32x16>(wave, 0, quarter), operands.read<f32x16>(wave, 1, quarter),
                       operands.read<f32x16>(wave, 2, quarter), scale));
    }
    return step + 1;
}
const Step* div_fmas_f64(Wave* wave, const Step* step) {
    const Float64Mode guard(wave);
    const Operands operands(step);
    for (int quarter = 0; quarter < 4; ++quarter) {
        const i32x16 scale = Access<LaneMask>::read(wave, layout::vcc, 0, quarter);
        const Wide<i64x8> wide_scale = join<i64x8>((u32x16)scale, (u32x16)scale);
        const auto a = operands.read<F64>(wave, 0, quarter), b = operands.read<F64>(wave, 1, quarter),
                   c = operands.read<F64>(wave, 2, quarter);
        Access<F64>::write(wave, operands.destination, quarter, wave->exec,
                           Wide<f64x8>{scaled_fma(a.first, b.first, c.first, wide_scale.first),
                                       scaled_fma(a.second, b.second, c.second, wide_scale.second)});
    }
    return step + 1;
}

// clang-format off: one row an instruction
const Meaning rows[] = {
    {isa::Opcode::v_div_scale_f32,
     as_with_bit<f32x16, f32x16, f32x16, f32x16>(HIPKITTENS_LAMBDA((auto a, auto b, auto c), scaled(a, b, c)))},
    {isa::Opcode::v_div_scale_f64,
     as_with_bit<F64, F64, F64, F64>(HIPKITTENS_LAMBDA((auto a, auto b, auto c), scaled(a, b, c)))},
    {isa::Opcode::v_div_fmas_f32, div_fmas_f32},
    {isa::Opcode::v_div_fmas_f64, div_fmas_f64},
    MEANING3(v_div_fixup_f32, f32x16, f32x16, f32x16, f32x16, fixed_up(a, b, c))
    MEANING3(v_div_fixup_f64, F64, F64, F64, F64, fixed_up(a, b, c))
    MEANING3(v_div_fixup_f16, Half, Half, Half, Half, fixed_up_half(a, b, c))
    MEANING3(v_div_fixup_legacy_f16, Half, Half, Half, Half, fixed_up_half(a, b, c))
};
// clang-format on

}  // namespace

MeaningList division_meanings() { return list_of(rows); }

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
