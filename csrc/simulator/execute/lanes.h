// simulator/execute/lanes.h: sixteen lanes at a time as compiler vectors: the one place that knows the host's width.
// SPDX-License-Identifier: MIT
//
// Sources that include this are compiled once per host level, with HIPKITTENS_HOST_LEVEL naming the level and its
// namespace. Vector extensions of GCC and clang keep the meaning of an instruction one plain expression; the compiler
// splits a 64-byte vector where the host is narrower.
#pragma once

#include <cstdint>
#include <cstring>

#include "simulator/machine/step.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#ifndef HIPKITTENS_HOST_LEVEL
#error "compile with -DHIPKITTENS_HOST_LEVEL=portable|avx2|avx512|avx512_bf16"
#endif

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x32 __attribute__((vector_size(64)));
typedef int16_t i16x32 __attribute__((vector_size(64)));
typedef uint64_t u64x8 __attribute__((vector_size(64)));
typedef int64_t i64x8 __attribute__((vector_size(64)));
typedef double f64x8 __attribute__((vector_size(64)));

template <class Vector>
inline __attribute__((always_inline)) Vector load_quarter(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
    return *reinterpret_cast<const Vector*>(at(wave, offset + stride * quarter));
}

// All ones in the lanes whose bit in `mask` (16 bits) is set.
inline __attribute__((always_inline)) i32x16 lane_mask(uint32_t mask) {
    const i32x16 bit = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
    return ((i32x16{} + static_cast<int32_t>(mask)) & bit) != 0;
}

// Writes the lanes of quarter `quarter` that EXEC enables.
template <class Vector>
inline __attribute__((always_inline)) void store_quarter(Wave* wave, uint32_t offset, int quarter, Vector value) {
    static_assert(sizeof(Vector) == 64);
    uint8_t* place = at(wave, offset + 64 * quarter);
    const uint32_t mask = static_cast<uint32_t>(wave->exec >> (16 * quarter)) & 0xffff;
#if defined(__AVX512F__)
    _mm512_mask_store_epi32(place, static_cast<__mmask16>(mask), (__m512i)value);
#else
    const i32x16 enabled = lane_mask(mask);
    i32x16& row = *reinterpret_cast<i32x16*>(place);
    row = ((i32x16)value & enabled) | (row & ~enabled);
#endif
}

// One bit per lane of a comparison's result (0 or -1 per lane).
inline __attribute__((always_inline)) uint32_t to_bits(i32x16 truth) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)truth, (__m512i)truth);
#else
    uint32_t bits = 0;
    for (int lane = 0; lane < 16; ++lane) bits |= (static_cast<uint32_t>(truth[lane]) & 1u) << lane;
    return bits;
#endif
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
