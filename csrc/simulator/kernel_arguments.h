// simulator/kernel_arguments.h: the kernel argument segment that a launch passes to the machine.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "code_object/kernel.h"

namespace hipkittens::simulator {

struct LaunchShape {
    uint32_t grid[3], block[3];
    uint32_t dynamic_lds_bytes;
};

// From hipModuleLaunchKernel's array of pointers, one per argument that is not hidden, in the kernel's order.
std::vector<uint8_t> arguments_from_pointers(const code_object::Kernel& kernel, void* const* pointers,
                                             const LaunchShape& shape);

// From a buffer that already has the layout of the segment; the hidden part is filled in here.
std::vector<uint8_t> arguments_from_buffer(const code_object::Kernel& kernel, const void* buffer,
                                           size_t bytes, const LaunchShape& shape);

}  // namespace hipkittens::simulator
