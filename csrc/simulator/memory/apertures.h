// simulator/memory/apertures.h: the flat address ranges that refer to LDS and scratch instead of memory.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace hipkittens::simulator::memory {

// The upper 32 bits of a flat address inside the aperture. No host pointer has them: user space ends below
// 2^47.
inline constexpr uint32_t shared_aperture_high = 0x10000, private_aperture_high = 0x20000;

}  // namespace hipkittens::simulator::memory
