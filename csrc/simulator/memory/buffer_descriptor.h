// simulator/memory/buffer_descriptor.h: the 128-bit buffer resource (V#) of gfx9, as in the CDNA3 ISA manual.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace hipkittens::simulator::memory {

struct BufferDescriptor {
    uint64_t base;       // bits 47..0
    uint32_t stride;     // bits 61..48, bytes
    bool swizzle;        // bit 63
    uint32_t records;    // bits 95..64: bytes, or elements of `stride` when an index is used
    bool add_thread_id;  // bit 119
};

static inline BufferDescriptor decode_buffer_descriptor(uint32_t word0, uint32_t word1, uint32_t word2,
                                                        uint32_t word3) {
    return {word0 | static_cast<uint64_t>(word1 & 0xffff) << 32, word1 >> 16 & 0x3fff, (word1 >> 31 & 1) != 0,
            word2, (word3 >> 23 & 1) != 0};
}

}  // namespace hipkittens::simulator::memory
