// simulator/execute/matrix_mode.h: the floating-point mode of matrix instructions.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/machine/wave.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// Matrix cores round to nearest even and keep denormals regardless of MODE; the host's MXCSR holds MODE's f32
// settings.
class MatrixMode {
  public:
    __attribute__((always_inline)) explicit MatrixMode(const Wave* wave) {
#if defined(__x86_64__)
        constexpr uint32_t f32_bits = 0x33, nearest_with_denormals = 0x30, mxcsr_default = 0x1f80;
        if (__builtin_expect((wave->mode & f32_bits) == nearest_with_denormals, 1)) return;
        saved_ = __builtin_ia32_stmxcsr();
        __builtin_ia32_ldmxcsr(mxcsr_default);
#else
        (void)wave;
#endif
    }
    __attribute__((always_inline)) ~MatrixMode() {
#if defined(__x86_64__)
        if (__builtin_expect(saved_ != 0, 0)) __builtin_ia32_ldmxcsr(saved_);
#endif
    }

  private:
    [[maybe_unused]] uint32_t saved_ = 0;  // MXCSR is never 0: its exception masks are set
};

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
