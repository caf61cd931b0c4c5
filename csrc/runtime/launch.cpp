// runtime/launch.cpp: starts a kernel on a device.
// SPDX-License-Identifier: MIT
#include "runtime/launch.h"

#include <vector>

#include "runtime/kernel_library.h"

namespace hipkittens::runtime {
namespace {

hipError_t launch_bounded(const Device& device, hipFunction_t function, const LaunchShape& shape,
                          void* stream, const void* arguments, size_t argument_bytes,
                          std::span<const Region> regions) {
    std::vector<BoundedRegion> bounds;
    bounds.reserve(regions.size());
    for (const Region& region : regions) {
        bounds.push_back(
            {region.pointer, region.bytes, region.name, region.writable ? 1 : 0, region.unwritten});
    }
    return static_cast<hipError_t>(device.library->simulator_functions.launch_bounded(
        function, shape.grid, shape.block, shape.dynamic_lds_bytes, stream, arguments, argument_bytes,
        bounds.data(), bounds.size()));
}

hipError_t launch_plain(const Device& device, hipFunction_t function, const LaunchShape& shape, void* stream,
                        const void* arguments, size_t argument_bytes) {
    void* extra[] = {hip::launch_param_buffer_pointer, const_cast<void*>(arguments),
                     hip::launch_param_buffer_size, &argument_bytes, hip::launch_param_end};
    const auto& [grid, block, dynamic_lds_bytes] = shape;
    return device.library->functions.hipModuleLaunchKernel(function, grid[0], grid[1], grid[2], block[0],
                                                           block[1], block[2], dynamic_lds_bytes,
                                                           static_cast<hipStream_t>(stream), nullptr, extra);
}

}  // namespace

void launch(const Device& device, const std::string& kernel, const LaunchShape& shape, void* stream,
            const void* arguments, size_t argument_bytes, std::span<const Region> regions) {
    launch(device, kernel_function(device, kernel, stream), kernel, shape, stream, arguments, argument_bytes,
           regions);
}

void launch(const Device& device, hipFunction_t function, const std::string& kernel, const LaunchShape& shape,
            void* stream, const void* arguments, size_t argument_bytes, std::span<const Region> regions) {
    const CurrentDevice current(device);
    const hipError_t error =
        device.library->is_simulator()
            ? launch_bounded(device, function, shape, stream, arguments, argument_bytes, regions)
            : launch_plain(device, function, shape, stream, arguments, argument_bytes);
    if (error != hip::hipSuccess)
        device.library->check(error,
                              "launching kernel " + kernel + " on " + device.name + " (" + device.arch + ")");
}

}  // namespace hipkittens::runtime
