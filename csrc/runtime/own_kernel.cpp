// runtime/own_kernel.cpp: user-supplied kernels, opened and launched from Python.
// SPDX-License-Identifier: MIT
#include "runtime/own_kernel.h"

#include <memory>
#include <string>
#include <vector>

#include "code_object/code_object.h"
#include "runtime/kernel_library.h"
#include "runtime/launch.h"

namespace hipkittens::runtime {
namespace {

struct OwnKernel {
    const Device* device = nullptr;
    LoadedKernel loaded;
    std::string name;
    std::vector<uint8_t> image;  // HIP may read it for as long as the module is loaded
};

int refuse(const char* reason) {
    hipkittens_runtime_refuse(reason);
    return 1;
}

OwnKernel* open(int ordinal, const char* arch, std::span<const uint8_t> bytes, const std::string& symbol) {
    const Device& device = ordinal < 0 ? simulated_device(arch) : hip_device(ordinal);
    check_code_object(device.arch, symbol, bytes);
    auto own = std::make_unique<OwnKernel>();
    own->device = &device;
    own->name = symbol;
    own->image.assign(bytes.begin(), bytes.end());
    own->loaded = load_kernel(device, symbol, own->image);
    return own.release();
}

}  // namespace
}  // namespace hipkittens::runtime

using namespace hipkittens::runtime;

#define EXPORT __attribute__((visibility("default")))

EXPORT void* hipkittens_runtime_open_kernel(int ordinal, const char* arch, const uint8_t* bytes,
                                            uint64_t size, const char* symbol) {
    try {
        if (!bytes || !symbol || (ordinal < 0 && !arch)) throw Error("a null pointer was passed");
        return open(ordinal, arch, {bytes, size}, symbol);
    } catch (const std::exception& error) {
        refuse(error.what());
        return nullptr;
    }
}

EXPORT int hipkittens_runtime_launch_kernel(void* kernel, const uint32_t grid[3], const uint32_t block[3],
                                            uint32_t dynamic_lds_bytes, void* stream, const void* arguments,
                                            uint64_t argument_bytes, const hipkittens_runtime_region* regions,
                                            uint64_t region_count) {
    try {
        if (!kernel) throw Error("a null pointer was passed");
        const OwnKernel& own = *static_cast<const OwnKernel*>(kernel);
        const LaunchShape shape{
            {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, dynamic_lds_bytes};
        std::vector<Region> allowed;
        for (const hipkittens_runtime_region& region : std::span(regions, region_count))
            allowed.push_back({region.begin, region.bytes, region.name, region.writable != 0});
        launch(*own.device, own.loaded.function, own.name, shape, stream, arguments, argument_bytes, allowed);
        return 0;
    } catch (const std::exception& error) {
        return refuse(error.what());
    }
}

EXPORT void hipkittens_runtime_close_kernel(void* kernel) {
    const std::unique_ptr<OwnKernel> own(static_cast<OwnKernel*>(kernel));
    if (!own) return;
    try {
        const CurrentDevice current(*own->device);
        own->device->library->functions.hipModuleUnload(own->loaded.module);
    } catch (const std::exception&) {
        // The device is gone, and its module with it.
    }
}
