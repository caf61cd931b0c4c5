// tests/tiles/swizzle_probe.cpp: the swizzles of shared tiles as a C function for ctypes.
// SPDX-License-Identifier: MIT
#include "tiles/lane_layout.h"
#include "tiles/swizzle.h"
#include "tiles/target.h"

extern "C" unsigned probe_offset(int access, unsigned row_bytes, int target, unsigned row, unsigned byte) {
    const kittens::Target& facts = target == 942 ? kittens::gfx942 : kittens::gfx950;
    return kittens::swizzled_offset(static_cast<kittens::Access>(access), row_bytes,
                                    facts.read_b128_window_bytes, row, byte);
}
