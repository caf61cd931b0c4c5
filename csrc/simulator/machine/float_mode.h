// simulator/machine/float_mode.h: applies MODE's rounding and denormal bits to the host.
// SPDX-License-Identifier: MIT
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace hipkittens::simulator {

// MODE's f32 bits are applied to the host through MXCSR. MODE has separate bits for f64 and f16: f16 handlers
// compute in f32 and do not depend on them; f64 handlers set their own denormal mode if it differs.
static inline uint32_t host_float_mode(uint32_t mode) {
    constexpr uint32_t flush_to_zero = 1u << 15, denormals_are_zero = 1u << 6, all_masked = 0x1f80;
    // MODE.round: 0 nearest even, 1 up, 2 down, 3 zero; MXCSR.RC: 0 nearest even, 1 down, 2 up, 3 zero.
    constexpr uint32_t rounding[4] = {0, 2, 1, 3};
    uint32_t csr = all_masked | rounding[mode & 3] << 13;
    const uint32_t denormals = mode >> 4 & 3;
    if (!(denormals & 1)) csr |= denormals_are_zero;
    if (!(denormals & 2)) csr |= flush_to_zero;
    return csr;
}

// Called before a wave runs: another wave may have changed the host's mode since.
static inline void enter_float_mode(uint32_t mode) {
    constexpr uint32_t exceptions_seen = 0x3f;
    const uint32_t wanted = host_float_mode(mode);
    if (__builtin_expect((_mm_getcsr() & ~exceptions_seen) != wanted, 0)) _mm_setcsr(wanted);
}

}  // namespace hipkittens::simulator
