// tests/tiles/swizzle_probe.cpp: the swizzles of shared tiles as a C function for ctypes.
// SPDX-License-Identifier: MIT
#include "tiles/lane_layout.h"
#include "tiles/pipeline.h"
#include "tiles/swizzle.h"
#include "tiles/target.h"

extern "C" unsigned probe_offset(int access, unsigned row_bytes, int target, unsigned row, unsigned byte) {
    const kittens::Target& facts = target == 942 ? kittens::gfx942 : kittens::gfx950;
    return kittens::swizzled_offset(static_cast<kittens::Access>(access), row_bytes,
                                    facts.read_b128_window_bytes, row, byte);
}

// Loads that may be under way after `phase` of a ping-pong tile whose four pieces take `loads` each.
extern "C" int probe_outstanding(int phase, int loads) {
    const kittens::Pipeline<4> pipeline{
        4, {{1, 0, 2, loads}, {2, 0, 2, loads}, {3, 1, 2, loads}, {0, 2, 1, loads}}};
    return pipeline.outstanding_after(phase);
}
// One piece, issued in phase `issued` `ahead` tiles before the one whose phase `read` reads it; of `phases`.
extern "C" int probe_single(int phases, int issued, int read, int ahead, int loads, int phase) {
    const kittens::Pipeline<1> pipeline{phases, {{issued, read, ahead, loads}}};
    return pipeline.outstanding_after(phase);
}
