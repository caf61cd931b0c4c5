// simulator/machine/host_float_mode.h: the rounding and denormal mode of a host thread while it runs a kernel.
// SPDX-License-Identifier: MIT
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simulator/machine/float_mode.h"

namespace hipkittens::simulator {

// Starts with the mode of the kernel's descriptor; the thread's own mode is restored afterwards.
class HostFloatMode {
  public:
    explicit HostFloatMode(uint8_t float_mode) : before_(_mm_getcsr()) {
        _mm_setcsr(host_float_mode(float_mode));
    }
    ~HostFloatMode() { _mm_setcsr(before_); }
    HostFloatMode(const HostFloatMode&) = delete;

  private:
    unsigned before_;
};

}  // namespace hipkittens::simulator
