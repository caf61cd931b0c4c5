// runtime/own_kernel.h: user-supplied kernels, opened and launched from Python. Plain C, exported.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Memory a launch may touch; see runtime::Region.
struct hipkittens_runtime_region {
    const void* begin;
    uint64_t bytes;
    const char* name;
    int writable;
};

// Loads `symbol` of a code object on GPU `ordinal`, or with ordinal -1 on the simulated `arch` ("gfx942").
// Returns a handle for the two functions below, or null with the reason in hipkittens_runtime_last_error.
void* hipkittens_runtime_open_kernel(int ordinal, const char* arch, const uint8_t* bytes, uint64_t size,
                                     const char* symbol);

// runtime::launch of an opened kernel: grid in workgroups, block in work-items, `arguments` in the layout of
// the code object's metadata. Returns 0, or 1 with the reason in hipkittens_runtime_last_error.
int hipkittens_runtime_launch_kernel(void* kernel, const uint32_t grid[3], const uint32_t block[3],
                                     uint32_t dynamic_lds_bytes, void* stream, const void* arguments,
                                     uint64_t argument_bytes, const hipkittens_runtime_region* regions,
                                     uint64_t region_count);

// Unloads it. Its launches must have finished.
void hipkittens_runtime_close_kernel(void* kernel);
}
