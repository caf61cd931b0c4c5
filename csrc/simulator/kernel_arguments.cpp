// simulator/kernel_arguments.cpp: the kernel argument segment that a launch passes to the machine.
// SPDX-License-Identifier: MIT
#include "simulator/kernel_arguments.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "simulator/hip_call.h"
#include "simulator/memory/apertures.h"

namespace hipkittens::simulator {
namespace {

using code_object::Argument;
using code_object::Kernel;
using code_object::ValueKind;

// Meaning of the hidden words: LLVM "User Guide for AMDGPU Backend", code object V5 metadata, table of
// .value_kind.
uint64_t hidden_value(const Kernel& kernel, const Argument& argument, const LaunchShape& shape) {
    switch (argument.kind) {
        case ValueKind::hidden_block_count_x:
            return shape.grid[0];
        case ValueKind::hidden_block_count_y:
            return shape.grid[1];
        case ValueKind::hidden_block_count_z:
            return shape.grid[2];
        case ValueKind::hidden_group_size_x:
            return shape.block[0];
        case ValueKind::hidden_group_size_y:
            return shape.block[1];
        case ValueKind::hidden_group_size_z:
            return shape.block[2];
        case ValueKind::hidden_grid_dims:
            return 3;  // HIP always dispatches three dimensions
        case ValueKind::hidden_dynamic_lds_size:
            return shape.dynamic_lds_bytes;
        case ValueKind::hidden_private_base:
            return memory::private_aperture_high;
        case ValueKind::hidden_shared_base:
            return memory::shared_aperture_high;
        // A HIP grid is whole workgroups, so nothing remains, and it starts at 0.
        case ValueKind::hidden_remainder_x:
        case ValueKind::hidden_remainder_y:
        case ValueKind::hidden_remainder_z:
        case ValueKind::hidden_global_offset_x:
        case ValueKind::hidden_global_offset_y:
        case ValueKind::hidden_global_offset_z:
        case ValueKind::hidden_none:
        // There is no printf, no host call, no device malloc and no device enqueue here. A kernel that uses
        // one of them gets a null pointer, and its access is reported.
        case ValueKind::hidden_printf_buffer:
        case ValueKind::hidden_hostcall_buffer:
        case ValueKind::hidden_default_queue:
        case ValueKind::hidden_completion_action:
        case ValueKind::hidden_multigrid_sync_arg:
        case ValueKind::hidden_heap_v1:
        case ValueKind::hidden_queue_ptr:
            return 0;
        default:
            throw HipError(hip::hipErrorNotSupported, "kernel " + kernel.name +
                                                          " wants the hidden argument " + argument.kind_text +
                                                          ", which the simulator does not know");
    }
}

void fill_hidden(const Kernel& kernel, const LaunchShape& shape, std::vector<uint8_t>& segment) {
    for (const Argument& argument : kernel.arguments) {
        if (!argument.is_hidden()) continue;
        const uint64_t value = hidden_value(kernel, argument, shape);
        std::memset(segment.data() + argument.offset, 0, argument.bytes);
        std::memcpy(segment.data() + argument.offset, &value, argument.bytes < 8 ? argument.bytes : 8);
    }
}

}  // namespace

std::vector<uint8_t> arguments_from_pointers(const Kernel& kernel, void* const* pointers,
                                             const LaunchShape& shape) {
    std::vector<uint8_t> segment(kernel.kernarg_bytes);
    size_t index = 0;
    for (const Argument& argument : kernel.arguments) {
        if (argument.is_hidden()) continue;
        if (!pointers || !pointers[index]) {
            throw HipError(hip::hipErrorInvalidValue, "kernel " + kernel.name + ": the pointer to argument " +
                                                          std::to_string(index) + " is null");
        }
        std::memcpy(segment.data() + argument.offset, pointers[index++], argument.bytes);
    }
    fill_hidden(kernel, shape, segment);
    return segment;
}

std::vector<uint8_t> arguments_from_buffer(const Kernel& kernel, const void* buffer, size_t bytes,
                                           const LaunchShape& shape) {
    const auto refuse = [&](const std::string& what) {
        throw HipError(hip::hipErrorInvalidValue, "kernel " + kernel.name + ": " + std::to_string(bytes) +
                                                      " bytes of arguments, but " + what);
    };
    if (bytes < kernel.explicit_kernarg_bytes) {
        refuse("the kernel takes " + std::to_string(kernel.explicit_kernarg_bytes));
    }
    // Callers that store every argument in a 16-byte slot pass the padding of the last one too.
    if (bytes > (size_t{kernel.kernarg_bytes} + 15) / 16 * 16) {
        refuse("the kernel's argument segment ends at " + std::to_string(kernel.kernarg_bytes));
    }
    if (bytes && !buffer) refuse("the pointer to them is null");
    std::vector<uint8_t> segment(kernel.kernarg_bytes);
    if (bytes) std::memcpy(segment.data(), buffer, std::min(bytes, segment.size()));
    fill_hidden(kernel, shape, segment);
    return segment;
}

}  // namespace hipkittens::simulator
