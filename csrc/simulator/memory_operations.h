// simulator/memory_operations.h: the memory operations of HIP's functions and graphs.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "hip/hip_abi.h"

namespace hipkittens::simulator {

// Allocates on the thread's device, null for 0 bytes. `function` is the caller's name, for names in reports.
void* allocate(size_t bytes, const char* function, hip::hipMemoryType type = hip::hipMemoryTypeDevice);

// Both throw HipError for a range that does not match `kind`, or that leaves an allocation.
void copy(void* destination, const void* source, size_t bytes, int kind);
// `count` elements of 1, 2 or 4 bytes.
void fill_with(void* destination, unsigned int value, size_t element_bytes, size_t count);

// Records the time in the event.
void record(hip::hipEvent_t event);

}  // namespace hipkittens::simulator
