// simulator/memory/lane_swizzle.h: which lane each lane reads in ds_swizzle_b32.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace hipkittens::simulator::memory {

// `offset` is the instruction's, all 16 bits (ISA manual, "DS_SWIZZLE_B32").
uint32_t swizzle_source(uint32_t lane, uint16_t offset);

// The 64 source lanes as one table, aligned to 64 bytes; it lives as long as the process.
const uint32_t* swizzle_sources(uint16_t offset);

}  // namespace hipkittens::simulator::memory
