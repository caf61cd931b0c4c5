// examples/missing_barrier.cpp: reverses blocks of 128 numbers through LDS, and forgets the barrier between writing and reading.
// SPDX-License-Identifier: MIT
#include "tiles/tiles.h"

using namespace kittens;

extern "C" __attribute__((global)) void reverse_blocks(const float* x, float* out, float factor) {
    __attribute__((shared)) static float block[128];
    const int item = thread_id();
    const long first = workgroup_id_x() * 128;
    float scaled = factor * x[first + item];
    block[item] = scaled;
    // A barrier is missing here: a wave may read what the other one has not written yet.
    float other = block[127 - item];
    out[first + item] = other;
}
