// simulator/memory/lane_swizzle.cpp: the four modes of ds_swizzle_b32.
// SPDX-License-Identifier: MIT
#include "simulator/memory/lane_swizzle.h"

#include <atomic>
#include <bit>
#include <memory>

namespace hipkittens::simulator::memory {

uint32_t swizzle_source(uint32_t lane, uint16_t offset) {
    const uint32_t half = lane & 0x20, low = lane & 0x1f;
    if (offset >= 0xe000) {
        // FFT: bit-reversed order within 32 lanes; the lane bits set in the mask are unchanged.
        const uint32_t mask = offset & 0x1f;
        uint32_t reversed = 0;
        for (int bit = 0; bit < 5; ++bit) reversed |= (low >> bit & 1) << (4 - bit);
        return half | reversed >> std::popcount(mask) | (low & mask);
    }
    if (offset >= 0xc000) {
        // Rotate within 32 lanes: bit 10 direction (1: right), bits 9..5 distance, bits 4..0 lane bits that
        // are unchanged.
        const uint32_t mask = offset & 0x1f, distance = offset >> 5 & 0x1f;
        const uint32_t moved = offset >> 10 & 1 ? low - distance : low + distance;
        return half | (low & mask) | (moved & 0x1f & ~mask);
    }
    if (offset & 0x8000)
        return (lane & ~3u) | (offset >> (2 * (lane & 3)) & 3);  // two bits for each of four lanes
    const uint32_t and_mask = offset & 0x1f, or_mask = offset >> 5 & 0x1f, xor_mask = offset >> 10 & 0x1f;
    return half | (((low & and_mask) | or_mask) ^ xor_mask);
}

const uint32_t* swizzle_sources(uint16_t offset) {
    struct alignas(64) Table {
        uint32_t source[64];
    };
    // No lock: in a forked child it could be held by a thread that does not exist there.
    static std::atomic<const Table*> tables[1 << 16];
    const Table* known = tables[offset].load();
    if (known) return known->source;
    auto made = std::make_unique<Table>();
    for (uint32_t lane = 0; lane < 64; ++lane) made->source[lane] = swizzle_source(lane, offset);
    if (tables[offset].compare_exchange_strong(known, made.get())) known = made.release();
    return known->source;
}

}  // namespace hipkittens::simulator::memory
