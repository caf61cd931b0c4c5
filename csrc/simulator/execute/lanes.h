// simulator/execute/lanes.h: sixteen lanes at a time as compiler vectors: the only file that depends on the host's vector width.
// SPDX-License-Identifier: MIT
//
// Sources that include this are compiled once per host level, with HIPKITTENS_HOST_LEVEL naming the level and its
// namespace. With the vector extensions of GCC and clang the meaning of an instruction is one plain expression; the compiler
// splits a 64-byte vector on hosts with narrower ones. Operations without an operator (fma, rounding, square root, half floats)
// are functions here, with the same bits at every level.
#pragma once

#include <cstdint>
#include <cstring>

#include "simulator/machine/step.h"

#include <immintrin.h>

#ifndef HIPKITTENS_HOST_LEVEL
#error "compile with -DHIPKITTENS_HOST_LEVEL=portable|avx2|avx512|avx512_bf16"
#endif

// Never an ordinary inline function: the linker may keep its AVX-512 copy for the portable level too.
#define HIPKITTENS_INLINE static inline __attribute__((always_inline))

// For functions that take many instructions on hosts without wide vectors: inlined at the AVX-512 levels
// only.
#if defined(__AVX512F__)
#define HIPKITTENS_LARGE HIPKITTENS_INLINE
#define HIPKITTENS_QUARTERS _Pragma("GCC unroll 4")
#else
#define HIPKITTENS_LARGE [[maybe_unused]] static __attribute__((noinline))
#define HIPKITTENS_QUARTERS _Pragma("GCC unroll 1")
#endif

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x32 __attribute__((vector_size(64)));
typedef int16_t i16x32 __attribute__((vector_size(64)));
typedef uint8_t u8x64 __attribute__((vector_size(64)));
typedef uint64_t u64x8 __attribute__((vector_size(64)));
typedef int64_t i64x8 __attribute__((vector_size(64)));
typedef double f64x8 __attribute__((vector_size(64)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));

// Applies `what` to the vector in pieces for which the host has an instruction.
template <class Piece, class Vector, class What, class... More>
HIPKITTENS_INLINE Vector in_pieces(What what, const Vector& a, const More&... more) {
    constexpr int count = sizeof(Vector) / sizeof(Piece);
    Vector result;
    for (int i = 0; i < count; ++i) {
        auto piece = [i](const Vector& whole) __attribute__((always_inline)) {
            Piece part;
            memcpy(&part, reinterpret_cast<const char*>(&whole) + i * sizeof(Piece), sizeof(Piece));
            return part;
        };
        const Piece part = what(piece(a), piece(more)...);
        memcpy(reinterpret_cast<char*>(&result) + i * sizeof(Piece), &part, sizeof(Piece));
    }
    return result;
}

template <class Vector>
HIPKITTENS_INLINE Vector load_quarter(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
    // Rows are reinterpreted freely (registers are untyped), so every access may alias every other.
    typedef Vector Row __attribute__((may_alias));
    return *reinterpret_cast<const Row*>(at(wave, offset + stride * quarter));
}

// All ones in the lanes whose bit in `mask` (16 bits) is set.
HIPKITTENS_LARGE i32x16 lane_mask(uint32_t mask) {
#if defined(__AVX512DQ__)
    return (i32x16)_mm512_movm_epi32(static_cast<__mmask16>(mask));
#else
    const i32x16 bit = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
    const i32x16 own = (i32x16{} + static_cast<int32_t>(mask)) & bit;
    return in_pieces<__m128i>([](__m128i x, __m128i b) { return _mm_cmpeq_epi32(x, b); }, own, bit);
#endif
}

// Writes the lanes of quarter `quarter` whose bit in the 64-bit `mask` is set.
template <class Vector>
HIPKITTENS_INLINE void store_quarter(Wave* wave, uint32_t offset, int quarter, uint64_t mask, Vector value) {
    static_assert(sizeof(Vector) == 64);
    uint8_t* place = at(wave, offset + 64 * quarter);
    const uint32_t bits = static_cast<uint32_t>(mask >> (16 * quarter)) & 0xffff;
#if defined(__AVX512F__)
    _mm512_mask_store_epi32(place, static_cast<__mmask16>(bits), (__m512i)value);
#else
    typedef i32x16 Row __attribute__((may_alias));
    Row& row = *reinterpret_cast<Row*>(place);
    if (__builtin_expect(bits == 0xffff, 1)) {
        row = (i32x16)value;
    } else {
        const i32x16 enabled = lane_mask(bits);
        row = ((i32x16)value & enabled) | (row & ~enabled);
    }
#endif
}

// Writes the lanes of quarter `quarter` that EXEC enables.
template <class Vector>
HIPKITTENS_INLINE void store_quarter(Wave* wave, uint32_t offset, int quarter, Vector value) {
    store_quarter(wave, offset, quarter, wave->exec, value);
}

// Writes all lanes of a scratch row.
template <class Vector>
HIPKITTENS_INLINE void store_whole_quarter(Wave* wave, uint32_t offset, int quarter, Vector value) {
    typedef Vector Row __attribute__((may_alias));
    *reinterpret_cast<Row*>(at(wave, offset + 64 * quarter)) = value;
}

// One bit per lane of a comparison's result (0 or -1 per lane).
HIPKITTENS_INLINE uint32_t to_bits(i32x16 truth) {
#if defined(__AVX512DQ__)
    return _mm512_movepi32_mask((__m512i)truth);
#else
    __m128 piece[4];
    memcpy(piece, &truth, 64);
    return static_cast<uint32_t>(_mm_movemask_ps(piece[0]) | _mm_movemask_ps(piece[1]) << 4 |
                                 _mm_movemask_ps(piece[2]) << 8 | _mm_movemask_ps(piece[3]) << 12);
#endif
}
HIPKITTENS_INLINE uint32_t to_bits(i64x8 truth) {
#if defined(__AVX512DQ__)
    return _mm512_movepi64_mask((__m512i)truth);
#else
    __m128d piece[4];
    memcpy(piece, &truth, 64);
    return static_cast<uint32_t>(_mm_movemask_pd(piece[0]) | _mm_movemask_pd(piece[1]) << 2 |
                                 _mm_movemask_pd(piece[2]) << 4 | _mm_movemask_pd(piece[3]) << 6);
#endif
}

// Sixteen 64-bit lanes: two vectors of eight, in lane order.
template <class Vector>
struct Wide {
    Vector first, second;
};

template <class Vector>
HIPKITTENS_INLINE Wide<Vector> join(u32x16 low, u32x16 high) {
    return {
        (Vector)__builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
        (Vector)__builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                        31)};
}
template <class Vector>
HIPKITTENS_INLINE u32x16 low_half(Wide<Vector> value) {
    return __builtin_shufflevector((u32x16)value.first, (u32x16)value.second, 0, 2, 4, 6, 8, 10, 12, 14, 16,
                                   18, 20, 22, 24, 26, 28, 30);
}
template <class Vector>
HIPKITTENS_INLINE u32x16 high_half(Wide<Vector> value) {
    return __builtin_shufflevector((u32x16)value.first, (u32x16)value.second, 1, 3, 5, 7, 9, 11, 13, 15, 17,
                                   19, 21, 23, 25, 27, 29, 31);
}

HIPKITTENS_LARGE Wide<f64x8> widen(f32x16 value) {
#if defined(__AVX512DQ__)
    return {(f64x8)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)value)),
            (f64x8)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)value, 1))};
#else
    return {
        __builtin_convertvector(__builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7), f64x8),
        __builtin_convertvector(__builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15), f64x8)};
#endif
}
HIPKITTENS_LARGE f32x16 narrow(Wide<f64x8> value) {
#if defined(__AVX512DQ__)
    return (f32x16)_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)value.first)),
                                      _mm512_cvtpd_ps((__m512d)value.second), 1);
#else
    const f32x8 first = __builtin_convertvector(value.first, f32x8),
                second = __builtin_convertvector(value.second, f32x8);
    return __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
}

// Selects a where the truth value is -1, b where it is 0.
template <class Truth, class Vector>
HIPKITTENS_INLINE Vector pick(Truth truth, Vector a, Vector b) {
#if defined(__AVX512F__)
    return truth ? a : b;
#else
    return (Vector)(((Truth)a & truth) | ((Truth)b & ~truth));  // GCC would process it lane by lane
#endif
}

// Comparisons that many other functions use. GCC would compile the operators lane by lane on narrow hosts.
HIPKITTENS_INLINE i32x16 is_nan(f32x16 a) {
#if defined(__AVX512F__)
    return a != a;
#elif defined(__AVX2__)
    return (i32x16)in_pieces<__m256>([](__m256 x) { return _mm256_cmp_ps(x, x, _CMP_UNORD_Q); }, a);
#else
    return (i32x16)in_pieces<__m128>([](__m128 x) { return _mm_cmpunord_ps(x, x); }, a);
#endif
}
HIPKITTENS_INLINE i64x8 is_nan(f64x8 a) {
#if defined(__AVX512F__)
    return a != a;
#elif defined(__AVX2__)
    return (i64x8)in_pieces<__m256d>([](__m256d x) { return _mm256_cmp_pd(x, x, _CMP_UNORD_Q); }, a);
#else
    return (i64x8)in_pieces<__m128d>([](__m128d x) { return _mm_cmpunord_pd(x, x); }, a);
#endif
}
HIPKITTENS_INLINE i32x16 is_greater(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
    return a > b;
#elif defined(__AVX2__)
    return (i32x16)in_pieces<__m256>([](__m256 x, __m256 y) { return _mm256_cmp_ps(x, y, _CMP_GT_OQ); }, a,
                                     b);
#else
    return (i32x16)in_pieces<__m128>([](__m128 x, __m128 y) { return _mm_cmpgt_ps(x, y); }, a, b);
#endif
}
HIPKITTENS_INLINE i64x8 is_greater(f64x8 a, f64x8 b) {
#if defined(__AVX512F__)
    return a > b;
#elif defined(__AVX2__)
    return (i64x8)in_pieces<__m256d>([](__m256d x, __m256d y) { return _mm256_cmp_pd(x, y, _CMP_GT_OQ); }, a,
                                     b);
#else
    return (i64x8)in_pieces<__m128d>([](__m128d x, __m128d y) { return _mm_cmpgt_pd(x, y); }, a, b);
#endif
}

// Vectors of the host's own width need no such help.
template <class Vector>
HIPKITTENS_INLINE auto is_greater(Vector a, Vector b) {
    return a > b;
}
template <class Vector>
HIPKITTENS_INLINE auto is_nan(Vector a) {
    return a != a;
}

// The sum of a and b, with the bits that rounding drops collected in the last place ("round to odd"), so that
// rounding it again to a type at least two bits narrower gives the correctly rounded sum.
template <class Float, class Bits>
HIPKITTENS_INLINE Float add_round_to_odd(Float a, Float b) {
    const Float sum = a + b, part = sum - a;
    const Float error = (a - (sum - part)) + (b - part);
    const auto inexact = is_greater(Float{}, error) | is_greater(error, Float{});
    const Bits bits = (Bits)sum, toward = (Bits)(is_greater(Float{}, error) ^ is_greater(Float{}, sum));
    const Bits step = (toward & -2) + 1;  // -1: the magnitude was rounded up
    return (Float)(bits + (step & (Bits)inexact & ((bits & 1) - 1)));
}

// Fused multiply-add, rounded once.
HIPKITTENS_LARGE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return in_pieces<__m256>([](__m256 x, __m256 y, __m256 z) { return _mm256_fmadd_ps(x, y, z); }, a, b, c);
#else
    const Wide<f64x8> x = widen(a), y = widen(b), z = widen(c);  // the product is exact in 53 bits
    return narrow(Wide<f64x8>{add_round_to_odd<f64x8, i64x8>(x.first * y.first, z.first),
                              add_round_to_odd<f64x8, i64x8>(x.second * y.second, z.second)});
#endif
}
HIPKITTENS_LARGE f64x8 fma(f64x8 a, f64x8 b, f64x8 c) {
#if defined(__AVX512F__)
    return (f64x8)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
    return in_pieces<__m256d>([](__m256d x, __m256d y, __m256d z) { return _mm256_fmadd_pd(x, y, z); }, a, b,
                              c);
#else
    f64x8 result;
    for (int lane = 0; lane < 8; ++lane) result[lane] = __builtin_fma(a[lane], b[lane], c[lane]);
    return result;
#endif
}

HIPKITTENS_LARGE f32x16 square_root(f32x16 a) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_sqrt_ps((__m512)a);
#else
    return in_pieces<__m128>([](__m128 x) { return _mm_sqrt_ps(x); }, a);
#endif
}
HIPKITTENS_LARGE f64x8 square_root(f64x8 a) {
#if defined(__AVX512F__)
    return (f64x8)_mm512_sqrt_pd((__m512d)a);
#else
    return in_pieces<__m128d>([](__m128d x) { return _mm_sqrt_pd(x); }, a);
#endif
}

// Rounding to an integral value.
enum class Rounding { nearest_even, down, up, toward_zero };

template <Rounding how, class Float, class Bits>
HIPKITTENS_INLINE Float round_by_magic(Float a, Float magic, Bits sign_bit, Bits quiet_bit) {
    const Bits sign = (Bits)a & sign_bit;
    const Float magnitude = (Float)((Bits)a & ~sign_bit), whole = (magnitude + magic) - magic;
    const Float lower = pick(is_greater(whole, magnitude), whole - 1, whole),
                upper = pick(is_greater(magnitude, whole), whole + 1, whole);
    const Float rounded = how == Rounding::nearest_even  ? whole
                          : how == Rounding::toward_zero ? lower
                          : how == Rounding::down        ? pick(is_greater(Float{}, a), upper, lower)
                                                         : pick(is_greater(Float{}, a), lower, upper);
    const Float result = pick(is_greater(magic, magnitude), (Float)((Bits)rounded | sign), a);
    return pick(is_nan(a), (Float)((Bits)a | quiet_bit), result);
}

template <Rounding how>
HIPKITTENS_LARGE f32x16 round_to_integral(f32x16 a) {
    [[maybe_unused]] constexpr int mode =
        static_cast<int>(how) | 8;  // Rounding has x86's order; no exceptions
#if defined(__AVX512F__)
    return (f32x16)_mm512_roundscale_ps((__m512)a, mode);
#elif defined(__AVX2__)
    return in_pieces<__m256>([](__m256 x) { return _mm256_round_ps(x, mode); }, a);
#else
    return round_by_magic<how>(a, f32x16{} + 8388608.0f, u32x16{} + 0x80000000u, u32x16{} + 0x400000u);
#endif
}
template <Rounding how>
HIPKITTENS_LARGE f64x8 round_to_integral(f64x8 a) {
    [[maybe_unused]] constexpr int mode = static_cast<int>(how) | 8;
#if defined(__AVX512F__)
    return (f64x8)_mm512_roundscale_pd((__m512d)a, mode);
#elif defined(__AVX2__)
    return in_pieces<__m256d>([](__m256d x) { return _mm256_round_pd(x, mode); }, a);
#else
    return round_by_magic<how>(a, f64x8{} + 4503599627370496.0, u64x8{} + 0x8000000000000000u,
                               u64x8{} + 0x8000000000000u);
#endif
}

// a * 2^n for integral n, rounded once. A NaN in n is returned quieted.
HIPKITTENS_LARGE f32x16 scale_by_power(f32x16 a, f32x16 n) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_scalef_ps((__m512)a, (__m512)n);
#else
    const f32x16 limit = f32x16{} + 300.0f, below = pick(is_greater(n, limit), limit, n);
    const f32x16 inside = pick(is_greater(-limit, below), -limit, below);
    const Wide<f64x8> value = widen(a), power = widen(inside);
    auto scaled = [](f64x8 v, f64x8 p) __attribute__((always_inline)) {
        // In 2^52 * 1.5 + p, p + 1023 << 52 can be extracted with one shift.
        const i64x8 biased = (i64x8)(p + (6755399441055744.0 + 1023.0));
        return v * (f64x8)(biased << 52);
    };
    const f32x16 result =
        narrow(Wide<f64x8>{scaled(value.first, power.first), scaled(value.second, power.second)});
    return pick(is_nan(n), (f32x16)((u32x16)n | 0x400000), result);
#endif
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
