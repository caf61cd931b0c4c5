// simulator/execute/matrix_exact.h: the rounding of CDNA3's matrix cores, for f16, bf16 and xf32.
// SPDX-License-Identifier: MIT
//
// The rule is MMA-Sim's ("TR_FDPA" with F = 24, F2 = 31; arXiv 2511.10909, github.com/microsoft/MMA-Sim),
// which its authors found bit-equal to an MI300X. k is processed in groups of 8 (xf32: 4). In a group
//   1. a product has the significand sa * sb in (-4, 4) and the exponent ea + eb; a denormal has the smallest
//      normal exponent and a significand below 1; a zero product has the exponent -126. A product of 2^128 or
//      more is infinite.
//   2. all products are aligned to the largest exponent and truncated (toward zero) after 24 fractional bits;
//      the sum S of the results is exact.
//   3. with E = max(that exponent, C's exponent), S is truncated (toward minus infinity) after 31 fractional
//      bits relative to E, and C after 24; their sum is rounded to nearest even to f32, which is the C of the
//      next group.
// fp8 and bf8 ("GTR_FDPA", groups of 16): steps 1 and 2 separately for the even and for the odd k, both results
// truncated (toward minus infinity) after 24 fractional bits relative to the larger exponent, and added; in
// step 3 a C of less than E - 25 counts as 0. Infinities and NaN propagate as in any sum; here every NaN is
// 0x7fc00000 and every zero sum +0 (the rule leaves both open).
//
// Step 2 in f32 arithmetic, exact: the products of one group are scaled by a power of two so that converting
// to an integer performs the truncation. To stay within f32's range, each row of A and column of B is first
// divided by the power of two of its largest element in the group. Values that are still out of range,
// infinities and NaN are handled by scalar code.
#pragma once

#include "simulator/execute/matrix_strict.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// One group for one element of D: `a` and `b` point to its first k, consecutive k are `a_step` and `b_step`
// apart.
float exact_group(const float* a, int a_step, const float* b, int b_step, int count, int smallest_exponent,
                  float c);
// The sum of the products if some are infinite or NaN.
float special_sum(const float* a, int a_step, const float* b, int b_step, int count, float c);

namespace exact {

inline constexpr int no_exponent = -2000;  // of a zero: below every sum of two exponents

HIPKITTENS_INLINE MatrixInts exponent_field(MatrixFloats value) { return (MatrixInts)value >> 23 & 0xff; }
HIPKITTENS_INLINE MatrixInts larger(MatrixInts a, MatrixInts b) { return a > b ? a : b; }
HIPKITTENS_INLINE MatrixFloats power_of_two(MatrixInts n) { return (MatrixFloats)((n + 127) << 23); }
HIPKITTENS_INLINE bool any(MatrixInts truth) {
#if defined(__AVX512DQ__)
    return _mm512_movepi32_mask((__m512i)truth) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)truth) != 0;
#else
    int32_t all = 0;
    for (int i = 0; i < matrix_width; ++i) all |= truth[i];
    return all != 0;
#endif
}

// One operand of one block: elements divided by 2^(largest exponent of their row and group), and those
// exponents.
template <int size, int depth, int group>
struct Aligned {
    alignas(64) float value[depth * size];
    alignas(64) int32_t exponent[depth * size];  // relative to `largest`, no_exponent for 0
    alignas(64) int32_t largest[depth / group * size];
    bool has_special;  // an infinity or a NaN
};

template <int size, int depth, int group>
HIPKITTENS_INLINE void align(const float* from, int smallest_exponent, Aligned<size, depth, group>& to) {
    MatrixInts special = {};
    for (int first = 0; first < depth; first += group) {
        for (int row = 0; row < size; row += matrix_width) {
            MatrixInts exponents[group], largest = MatrixInts{} + no_exponent;
            for (int k = 0; k < group; ++k) {
                const MatrixFloats value = load_vector<MatrixFloats>(from + (first + k) * size + row);
                const MatrixInts field = exponent_field(value);
                special |= field == 255;
                exponents[k] = larger(field - 127, MatrixInts{} + smallest_exponent);
                exponents[k] = value == 0.0f ? MatrixInts{} + no_exponent : exponents[k];
                largest = larger(largest, exponents[k]);
            }
            // 2^-127 is not a normal number; the rest of a zero row does not matter.
            largest = largest > 126 ? MatrixInts{} + 126 : largest < -126 ? MatrixInts{} - 126 : largest;
            store_vector(to.largest + first / group * size + row, largest);
            const MatrixFloats scale = power_of_two(-largest);
            for (int k = 0; k < group; ++k) {
                const int at = (first + k) * size + row;
                store_vector(to.value + at, load_vector<MatrixFloats>(from + at) * scale);
                store_vector(to.exponent + at,
                             exponents[k] == no_exponent ? exponents[k] : exponents[k] - largest);
            }
        }
    }
    to.has_special = any(special);
}

// Step 3. S is in units of 2^(exponent - 24); a finite C is significand * 2^(c_exponent - 24).
#if defined(__AVX512F__)
// Sums of 40 bits in 64-bit integers, whose right shift truncates toward minus infinity. (Vector
// operators and zero-masked forms: g++ 12 warns about the undefined value inside the plain
// intrinsics.)
HIPKITTENS_INLINE i64x8 widen_half(i32x16 value, bool high) {
    const i32x8 half = high ? __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15)
                            : __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7);
    return (i64x8)_mm512_maskz_cvtepi32_epi64(0xff, (__m256i)half);
}
HIPKITTENS_INLINE __m256 add_half(i32x16 sum, i32x16 shift, i32x16 c, i32x16 power, bool high) {
    const __m512i cut = _mm512_maskz_srav_epi64(0xff, (__m512i)(widen_half(sum, high) << 7),
                                                (__m512i)widen_half(shift, high));
    const __m512d total = _mm512_maskz_cvtepi64_pd(0xff, (__m512i)((i64x8)cut + (widen_half(c, high) << 7)));
    return _mm512_maskz_cvtpd_ps(0xff, (__m512d)((f64x8)total * (f64x8)(widen_half(power, high) << 52)));
}

HIPKITTENS_INLINE MatrixFloats add_parts(MatrixInts sum, MatrixInts exponent, MatrixInts c,
                                         MatrixInts c_exponent) {
    const i32x16 top = larger(exponent, c_exponent);
    const i32x16 cut_c = (i32x16)_mm512_maskz_srav_epi32(0xffff, (__m512i)c, (__m512i)(top - c_exponent));
    const i32x16 shift = top - exponent, power = top + (1023 - 31);
    const __m512 low = _mm512_castps256_ps512(add_half(sum, shift, cut_c, power, false));
    return (MatrixFloats)_mm512_maskz_insertf32x8(0xffff, low, add_half(sum, shift, cut_c, power, true), 1);
}
#else
// The same sums in double.
HIPKITTENS_INLINE MatrixDoubles to_doubles(MatrixHalfInts value) {
#if defined(__AVX2__)
    return (MatrixDoubles)_mm256_cvtepi32_pd((__m128i)value);
#else
    return __builtin_convertvector(value, MatrixDoubles);
#endif
}
HIPKITTENS_INLINE MatrixDoubles power_of_two(MatrixHalfInts n) {
    n = n > -1000 ? n : MatrixHalfInts{} - 1000;
#if defined(__AVX2__)
    return (MatrixDoubles)_mm256_slli_epi64(_mm256_cvtepi32_epi64((__m128i)(n + 1023)), 52);
#else
    return (MatrixDoubles)(__builtin_convertvector(n + 1023, MatrixLongs) << 52);
#endif
}
HIPKITTENS_INLINE MatrixDoubles floor(MatrixDoubles value) {
#if defined(__AVX2__)
    return (MatrixDoubles)_mm256_floor_pd((__m256d)value);
#else
    return round_by_magic<Rounding::down>(value, MatrixDoubles{} + 4503599627370496.0,
                                          MatrixLongBits{} + 0x8000000000000000u,
                                          MatrixLongBits{} + 0x8000000000000u);
#endif
}

HIPKITTENS_INLINE MatrixHalfFloats add_half(MatrixHalfInts sum, MatrixHalfInts exponent, MatrixHalfInts c,
                                            MatrixHalfInts c_exponent) {
    const MatrixHalfInts top = exponent > c_exponent ? exponent : c_exponent;
    const MatrixDoubles cut = floor(to_doubles(sum) * power_of_two(exponent - top + 7));
    const MatrixDoubles cut_c = floor(to_doubles(c) * power_of_two(c_exponent - top));
    return __builtin_convertvector((cut + cut_c * 128.0) * power_of_two(top - 31), MatrixHalfFloats);
}

HIPKITTENS_INLINE MatrixFloats add_parts(MatrixInts sum, MatrixInts exponent, MatrixInts c,
                                         MatrixInts c_exponent) {
    MatrixFloats result;
    for (int which = 0; which < 2; ++which) {
        const MatrixHalfFloats rounded =
            add_half(half_of<MatrixHalfInts>(sum, which), half_of<MatrixHalfInts>(exponent, which),
                     half_of<MatrixHalfInts>(c, which), half_of<MatrixHalfInts>(c_exponent, which));
        memcpy(reinterpret_cast<char*>(&result) + which * sizeof(rounded), &rounded, sizeof(rounded));
    }
    return result;
}
#endif

template <bool drops_small_c = false>
HIPKITTENS_MATRIX_INLINE MatrixFloats add_to_c(MatrixInts sum, MatrixInts exponent, MatrixFloats c) {
    const MatrixInts bits = (MatrixInts)c, field = exponent_field(c);
    const MatrixInts normal = field != 0;
    const MatrixInts magnitude = ((bits & 0x7fffff) | (normal & 0x800000)) << 1;
    const MatrixInts negative = bits >> 31, c_exponent = field - 126 + normal;
    MatrixInts significand = (magnitude ^ negative) - negative;
    if constexpr (drops_small_c) significand = c_exponent < exponent - 25 ? MatrixInts{} : significand;
    const MatrixFloats result = add_parts(sum, exponent, significand, c_exponent);
    return field == 255 ? canonical_nan(c) : result;
}

}  // namespace exact

template <class Format, class ShapeOf>
void multiply_exact(const MatrixOperands& operands) {
    using namespace exact;
    constexpr int size = ShapeOf::size, depth = ShapeOf::depth, width = matrix_width;
    constexpr int group = depth < Format::group ? depth : Format::group;
    alignas(64) float a[depth * size], b[depth * size];
    Aligned<size, depth, group> left, right;
    for (int block = 0; block < ShapeOf::blocks; ++block) {
        unpack_block<Format, ShapeOf>(a, operands.a, block);
        unpack_block<Format, ShapeOf>(b, operands.b, block);
        align(a, Format::smallest_exponent, left);
        align(b, Format::smallest_exponent, right);
        const bool special = left.has_special || right.has_special;
        const int first_vgpr = block * size * size / 64;
        for (int row = 0; row < size; ++row) {
            for (int column = 0; column < size; column += width) {
                const int vgpr = first_vgpr + output_register<size>(row),
                          lane = output_lane<size>(row, column);
                MatrixFloats c = load_vector<MatrixFloats>(c_place(operands, vgpr, lane));
                for (int first = 0; first < depth; first += group) {
                    MatrixInts relative = MatrixInts{} + 2 * no_exponent;
#pragma GCC unroll 8
                    for (int k = first; k < first + group; ++k) {
                        relative =
                            larger(relative, load_vector<MatrixInts>(right.exponent + k * size + column) +
                                                 left.exponent[k * size + row]);
                    }
                    const MatrixInts all_zero = relative < -1000;
                    MatrixInts exponent =
                        relative + left.largest[first / group * size + row] +
                        load_vector<MatrixInts>(right.largest + first / group * size + column);
                    const MatrixInts unsafe =
                        ((relative < -100) | (exponent < -126) | (exponent > 125)) & ~all_zero;
                    if (__builtin_expect(special || any(unsafe), 0)) {
                        alignas(64) float sums[width];
                        store_vector(sums, c);
                        for (int j = 0; j < width; ++j) {
                            sums[j] = exact_group(a + first * size + row, size, b + first * size + column + j,
                                                  size, group, Format::smallest_exponent, sums[j]);
                        }
                        c = load_vector<MatrixFloats>(sums);
                        continue;
                    }
                    relative = larger(relative, MatrixInts{} - 100);
                    exponent = all_zero ? MatrixInts{} - 126 : exponent;
                    const MatrixFloats scale = power_of_two(24 - relative);
                    MatrixInts sum = {};
#pragma GCC unroll 8
                    for (int k = first; k < first + group; ++k) {
                        const MatrixFloats product =
                            load_vector<MatrixFloats>(right.value + k * size + column) *
                            left.value[k * size + row];
                        sum += __builtin_convertvector(product * scale, MatrixInts);
                    }
                    c = add_to_c(sum, exponent, c);
                }
                store_vector(d_place(operands, vgpr, lane), canonical_nan(c));
            }
        }
    }
}

// fp8 and bf8. Every product of two of them is a normal f32 number, so nothing has to be scaled in advance.
template <class Format, class FormatOfB, class ShapeOf>
void multiply_exact_bytes(const MatrixOperands& operands) {
    using namespace exact;
    constexpr int size = ShapeOf::size, depth = ShapeOf::depth, width = matrix_width, group = Format::group;
    alignas(64) float a[depth * size], b[depth * size];
    alignas(64) int32_t a_exponent[depth * size], b_exponent[depth * size];
    unpack_block<Format, ShapeOf>(a, operands.a, 0);
    unpack_block<FormatOfB, ShapeOf>(b, operands.b, 0);
    MatrixInts special = {};
    const auto find_exponents = [&special](const float* from, int32_t* to,
                                           int smallest) __attribute__((always_inline)) {
        for (int at = 0; at < depth * size; at += width) {
            const MatrixFloats value = load_vector<MatrixFloats>(from + at);
            const MatrixInts field = exponent_field(value);
            special |= field == 255;
            const MatrixInts exponent = larger(field - 127, MatrixInts{} + smallest);
            store_vector(to + at, value == 0.0f ? MatrixInts{} + no_exponent : exponent);
        }
    };
    find_exponents(a, a_exponent, Format::smallest_exponent);
    find_exponents(b, b_exponent, FormatOfB::smallest_exponent);
    const bool has_special = any(special);
    for (int row = 0; row < size; ++row) {
        for (int column = 0; column < size; column += width) {
            const int vgpr = output_register<size>(row), lane = output_lane<size>(row, column);
            MatrixFloats c = load_vector<MatrixFloats>(c_place(operands, vgpr, lane));
            if (__builtin_expect(has_special, 0)) {
                // An infinity or NaN alone determines its element; the other elements are computed below.
                alignas(64) float sums[width];
                store_vector(sums, c);
                for (int j = 0; j < width; ++j)
                    sums[j] = special_sum(a + row, size, b + column + j, size, depth, sums[j]);
                c = load_vector<MatrixFloats>(sums);
            }
            for (int first = 0; first < depth; first += group) {
                // Unsigned: the products of an infinity or NaN, whose sum is not used, may overflow.
                MatrixBits sum[2];
                MatrixInts exponent[2];
                for (int parity = 0; parity < 2; ++parity) {
                    MatrixInts largest = MatrixInts{} + 2 * no_exponent;
#pragma GCC unroll 8
                    for (int k = first + parity; k < first + group; k += 2) {
                        largest = larger(largest, load_vector<MatrixInts>(b_exponent + k * size + column) +
                                                      a_exponent[k * size + row]);
                    }
                    exponent[parity] = larger(largest, MatrixInts{} - 126);  // of a zero product
                    const MatrixFloats scale = power_of_two(24 - larger(largest, MatrixInts{} - 100));
                    sum[parity] = MatrixBits{};
#pragma GCC unroll 8
                    for (int k = first + parity; k < first + group; k += 2) {
                        const MatrixFloats product =
                            load_vector<MatrixFloats>(b + k * size + column) * a[k * size + row];
                        sum[parity] += (MatrixBits) __builtin_convertvector(product * scale, MatrixInts);
                    }
                }
                const MatrixInts top = larger(exponent[0], exponent[1]), most = MatrixInts{} + 31;
                const MatrixInts even = (MatrixInts)sum[0] >> -larger(exponent[0] - top, -most);
                const MatrixInts odd = (MatrixInts)sum[1] >> -larger(exponent[1] - top, -most);
                c = add_to_c<true>((MatrixInts)((MatrixBits)even + (MatrixBits)odd), top, c);
            }
            store_vector(d_place(operands, vgpr, lane), canonical_nan(c));
        }
    }
}

// The 4 x 4 shapes, one element at a time.
template <class Format, int depth>
void multiply_exact_4x4(const MatrixOperands& operands) {
    constexpr int vgprs = depth / Format::per_dword, group = depth < Format::group ? depth : Format::group;
    alignas(64) float a[depth * 64], b[depth * 64], d[4 * 64];
    for (int vgpr = 0; vgpr < vgprs; ++vgpr) {
        for (int lane = 0; lane < 64; lane += matrix_width) {
            for (int e = 0; e < Format::per_dword; ++e) {
                const int at = (vgpr * Format::per_dword + e) * 64 + lane;
                store_vector(a + at,
                             Format::unpack(load_vector<MatrixBits>(operands.a + vgpr * 256 + lane * 4), e));
                store_vector(b + at,
                             Format::unpack(load_vector<MatrixBits>(operands.b + vgpr * 256 + lane * 4), e));
            }
        }
    }
    for (int row = 0; row < 4; ++row) {
        for (int lane = 0; lane < 64; ++lane) {
            float sum;
            memcpy(&sum, c_place(operands, row, lane), 4);
            for (int first = 0; first < depth; first += group) {
                sum = exact_group(a + first * 64 + lane / 4 * 4 + row, 64, b + first * 64 + lane, 64, group,
                                  Format::smallest_exponent, sum);
            }
            d[row * 64 + lane] = sum;
        }
    }
    for (int row = 0; row < 4; ++row) memcpy(d_place(operands, row, 0), d + row * 64, 256);
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
