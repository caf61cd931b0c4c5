// simulator/execute/matrix_arithmetic.h: how a matrix instruction sums its products; vectors as wide as
// the host's.
// SPDX-License-Identifier: MIT
//
// strict  D = fma(A[k], B[k], D) for k = 0, 1, ..., starting from C: one rounding to nearest even per k,
//         denormals kept, every NaN result is 0x7fc00000. The same bits at every host level.
// fast    like strict, except at avx512_bf16 with bf16 operands: there the host's vdpbf16ps adds k in pairs,
//         the odd k of a pair first, each with one rounding, and treats denormal inputs and results as zero.
//         Floats of 8, 6 and 4 bits, all of which are bf16 values, are summed like bf16 ones; runs of k may
//         be interleaved.
// exact   the CDNA3 rule that MMA-Sim derived from hardware (arXiv 2511.10909): see matrix_exact.h. f32 and
//         f64 are k-sequential fused multiply-adds there too. For gfx950 an assumption: no rule is published.
#pragma once

#include "simulator/execute/lanes.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// A vector wider than the host's registers would be spilled to memory (and take the compiler minutes).
#if defined(__AVX512F__)
inline constexpr int matrix_width = 16;
#elif defined(__AVX2__)
inline constexpr int matrix_width = 8;
#else
inline constexpr int matrix_width = 4;
#endif
typedef float MatrixFloats __attribute__((vector_size(4 * matrix_width)));
typedef int32_t MatrixInts __attribute__((vector_size(4 * matrix_width)));
typedef uint32_t MatrixBits __attribute__((vector_size(4 * matrix_width)));

template <class Vector>
HIPKITTENS_INLINE Vector load_vector(const void* place) {
    Vector value;
    memcpy(&value, __builtin_assume_aligned(place, sizeof(Vector)), sizeof(Vector));
    return value;
}
template <class Vector>
HIPKITTENS_INLINE void store_vector(void* place, Vector value) {
    memcpy(__builtin_assume_aligned(place, sizeof(Vector)), &value, sizeof(Vector));
}

// Half as many elements, each with twice the bits.
typedef float MatrixHalfFloats __attribute__((vector_size(2 * matrix_width)));
typedef int32_t MatrixHalfInts __attribute__((vector_size(2 * matrix_width)));
typedef double MatrixDoubles __attribute__((vector_size(4 * matrix_width)));
typedef int64_t MatrixLongs __attribute__((vector_size(4 * matrix_width)));
typedef uint64_t MatrixLongBits __attribute__((vector_size(4 * matrix_width)));

template <class Half, class Whole>
HIPKITTENS_INLINE Half half_of(const Whole& whole, int which) {
    Half half;
    memcpy(&half, reinterpret_cast<const char*>(&whole) + which * sizeof(Half), sizeof(Half));
    return half;
}

// Operations that the host performs in a few instructions are inlined; the equivalents of about a hundred
// instructions are called.
#if defined(__AVX2__)
#define HIPKITTENS_MATRIX_INLINE HIPKITTENS_INLINE
#else
#define HIPKITTENS_MATRIX_INLINE [[maybe_unused]] static __attribute__((noinline))
#endif

HIPKITTENS_MATRIX_INLINE MatrixFloats fused_multiply_add(MatrixFloats a, MatrixFloats b, MatrixFloats c) {
#if defined(__AVX512F__)
    return (MatrixFloats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (MatrixFloats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    MatrixFloats result;
    for (int which = 0; which < 2; ++which) {
        const auto wide = [which](const MatrixFloats& whole) __attribute__((always_inline)) {
            return __builtin_convertvector(half_of<MatrixHalfFloats>(whole, which), MatrixDoubles);
        };
        const MatrixDoubles product = wide(a) * wide(b);  // exact in 53 bits
        const MatrixDoubles sum = add_round_to_odd<MatrixDoubles, MatrixLongs>(product, wide(c));
        const MatrixHalfFloats rounded = __builtin_convertvector(sum, MatrixHalfFloats);
        memcpy(reinterpret_cast<char*>(&result) + which * sizeof(rounded), &rounded, sizeof(rounded));
    }
    return result;
#endif
}
HIPKITTENS_INLINE MatrixFloats fused_multiply_add(float a, MatrixFloats b, MatrixFloats c) {
    return fused_multiply_add(a - MatrixFloats{}, b, c);  // a - 0 preserves the sign of a zero
}

HIPKITTENS_INLINE MatrixFloats canonical_nan(MatrixFloats value) {
    return value == value ? value : (MatrixFloats)(MatrixInts{} + 0x7fc00000);
}

// The multiplicand formats. `unpack` returns element `e` of some dwords as f32 (all conversions are exact).
// For the exact rule: how many k it adds at once, and the exponent of the smallest normal number.
struct Bf16 {
    static constexpr bool is_bf16 = true;
    static constexpr int per_dword = 2;
    static constexpr int group = 8;
    HIPKITTENS_INLINE MatrixFloats unpack(MatrixBits dwords, int e) {
        return (MatrixFloats)(e ? dwords & 0xffff0000u : dwords << 16);
    }
    static constexpr int smallest_exponent = -126;
};

struct F16 {
    static constexpr bool is_bf16 = false;
    static constexpr int per_dword = 2;
    static constexpr int group = 8;
    HIPKITTENS_INLINE MatrixFloats unpack(MatrixBits dwords, int e) {
        const MatrixBits half = e ? dwords >> 16 : dwords & 0xffffu;
#if defined(__AVX512F__)
        // Zero-masked forms: g++ 12 warns about the undefined value inside the others.
        return (MatrixFloats)_mm512_maskz_cvtph_ps(0xffff,
                                                   _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)half));
#elif defined(__F16C__)
        const __m256i halves = (__m256i)half;
        return (MatrixFloats)_mm256_cvtph_ps(
            _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
#else
        // Exponent and fraction in f32 positions give a value that is too small by 2^112; one exact
        // multiplication corrects it.
        const MatrixFloats magnitude = (MatrixFloats)((half & 0x7fffu) << 13) * 0x1p112f;
        const MatrixBits special = (half & 0x7c00u) == 0x7c00u ? MatrixBits{} + 0x7f800000u : MatrixBits{};
        return (MatrixFloats)((MatrixBits)magnitude | special | (half & 0x8000u) << 16);
#endif
    }
    static constexpr int smallest_exponent = -14;
};

struct F32 {
    static constexpr bool is_bf16 = false;
    static constexpr int per_dword = 1;
    static constexpr int group = 1;  // k-sequential
    HIPKITTENS_INLINE MatrixFloats unpack(MatrixBits dwords, int) { return (MatrixFloats)dwords; }
    static constexpr int smallest_exponent = -126;
};

// xf32 (TF32): an f32 of which the multiplier uses 10 fraction bits; the others are truncated.
struct Xf32 {
    static constexpr bool is_bf16 = false;
    static constexpr int per_dword = 1;
    static constexpr int group = 4;
    HIPKITTENS_INLINE MatrixFloats unpack(MatrixBits dwords, int) {
        return (MatrixFloats)(dwords & 0xffffe000u);
    }
    static constexpr int smallest_exponent = -126;
};

// Eight-bit floats. FNUZ (gfx942): 0x80 is the only NaN, there is no infinity. OCP (gfx950): e4m3's all-ones
// pattern is NaN and it has no infinity either, e5m2 has both as in IEEE 754.
enum class Float8 { fnuz, ocp };

template <int fraction_bits, Float8 kind>
struct Byte {
    static constexpr bool is_bf16 = false;
    static constexpr int per_dword = 4;
    static constexpr int group = 16;  // even and odd k are separate
    static constexpr int fraction = fraction_bits;
    static constexpr int bias = (fraction_bits == 3 ? 7 : 15) + (kind == Float8::fnuz);
    static constexpr int smallest_exponent = 1 - bias;
    HIPKITTENS_INLINE MatrixFloats unpack(MatrixBits dwords, int e) {
        const MatrixBits byte = dwords >> (8 * e) & 0xffu, magnitude = byte & 0x7fu;
        constexpr uint32_t smallest_normal = 1u << fraction_bits;
        const MatrixFloats normal =
            (MatrixFloats)((magnitude << (23 - fraction_bits)) + (static_cast<uint32_t>(127 - bias) << 23));
        const MatrixFloats place = MatrixFloats{} + power_of_two(1 - bias - fraction_bits);
        const MatrixFloats denormal = __builtin_convertvector((MatrixInts)magnitude, MatrixFloats) * place;
        MatrixFloats value = magnitude < smallest_normal ? denormal : normal;
        const MatrixFloats nan = (MatrixFloats)(MatrixBits{} + 0x7fc00000u),
                           infinity = (MatrixFloats)(MatrixBits{} + 0x7f800000u);
        if constexpr (kind == Float8::fnuz) {
            value = byte == 0x80u ? nan : value;
        } else if constexpr (fraction_bits == 3) {
            value = magnitude == 0x7fu ? nan : value;
        } else {
            value = magnitude == 0x7cu ? infinity : magnitude > 0x7cu ? nan : value;
        }
        return (MatrixFloats)((MatrixBits)value | (byte & 0x80u) << 24);
    }

  private:
    static constexpr float power_of_two(int n) {
        float value = 1;
        for (; n < 0; ++n) value /= 2;
        return value;
    }
};
template <Float8 kind>
using Fp8 = Byte<3, kind>;
template <Float8 kind>
using Bf8 = Byte<2, kind>;

// Signed bytes; products and accumulators are integers modulo 2^32.
struct I8 {
    static constexpr int per_dword = 4;
    HIPKITTENS_INLINE MatrixInts unpack(MatrixBits dwords, int e) {
        return (MatrixInts)(dwords << (24 - 8 * e)) >> 24;
    }
};

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
