// tiles/philox.h: counter-based random bits: those of any element can be computed where needed, and recomputed later.
// SPDX-License-Identifier: MIT
#pragma once
#include "element.h"

namespace kittens {

// Philox 4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC11; constants of table 2).
KITTENS_DEVICE vec<uint32_t, 4> philox(vec<uint32_t, 4> counter, uint32_t key_low, uint32_t key_high) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint64_t first = uint64_t{0xd2511f53} * counter[0], second = uint64_t{0xcd9e8d57} * counter[2];
        counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key_low, static_cast<uint32_t>(second),
                   static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key_high, static_cast<uint32_t>(first)};
        key_low += 0x9e3779b9;
        key_high += 0xbb67ae85;
    }
    return counter;
}

}  // namespace kittens
