// runtime/launch.h: starts a kernel on a device.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/device.h"

namespace hipkittens::runtime {

struct LaunchShape {
    uint32_t grid[3] = {1, 1, 1};    // workgroups
    uint32_t block[3] = {64, 1, 1};  // work-items
    uint32_t dynamic_lds_bytes = 0;
};

// Memory a launch may touch. The simulator reports any other access by the names given here; a GPU does not
// check.
struct Region {
    const void* pointer = nullptr;
    uint64_t bytes = 0;
    const char* name = "";
    bool writable = false;
    uint32_t unwritten = 0;  // not 0: every dword's initial value; a checking simulator reports reads of it
};

// Returns when the kernel is queued on `stream` (simulator: when it has finished). `arguments` is the segment
// in the layout of the kernel's argument struct; the HIP library supplies hidden arguments. Throws Error with
// the kernel's name, HIP's error and the simulator's full report.
void launch(const Device& device, const std::string& kernel, const LaunchShape& shape, void* stream,
            const void* arguments, size_t argument_bytes, std::span<const Region> regions);

// The same for a function already loaded on the device; `kernel` is its name in errors.
void launch(const Device& device, hipFunction_t function, const std::string& kernel, const LaunchShape& shape,
            void* stream, const void* arguments, size_t argument_bytes, std::span<const Region> regions);

}  // namespace hipkittens::runtime
