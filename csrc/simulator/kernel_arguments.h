// simulator/kernel_arguments.h: the kernel argument segment a launch hands to the machine.
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

// From a buffer that already is laid out as the segment is; the hidden part is written here.
std::vector<uint8_t> arguments_from_buffer(const code_object::Kernel& kernel, const void* buffer,
                                           size_t bytes, const LaunchShape& shape);

}  // namespace hipkittens::simulator
