// runtime/device.cpp: one device of a HIP library.
// SPDX-License-Identifier: MIT
#include "runtime/device.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

namespace hipkittens::runtime {
namespace {

// ROCm's structure has grown before: room for more members than those listed here.
struct alignas(16) Properties {
    char bytes[hip::device_properties::bytes + 4096] = {};

    std::string text(size_t offset) const {
        return std::string(bytes + offset, strnlen(bytes + offset, hip::device_properties::name_bytes));
    }
};

int attribute(const Device& device, hip::hipDeviceAttribute_t which) {
    int value = 0;
    device.library->check(
        device.library->functions.hipDeviceGetAttribute(&value, which, device.ordinal),
        "reading an attribute of device " + std::to_string(device.ordinal) + " of " + device.library->path());
    return value;
}

// For HIP libraries older than ROCm 7, which may lack the attribute. Compute units of an XCD: 32 on gfx950, 38 on MI300X,
// MI300A (228 in all) and MI325X, 20 on MI308X (80 in all), whose partitions of 80, 40 and 20 match no division of 304 or 228.
int xcds_by_compute_units(const Device& device, int compute_units) {
    const int each = device.arch == "gfx950" ? 32 : compute_units % 20 ? 38 : 20;
    return std::max(1, (compute_units + each - 1) / each);
}

Processors read_processors(const Device& device) {
    const HipFunctions& functions = device.library->functions;
    Processors processors{attribute(device, hip::hipDeviceAttributeMultiprocessorCount)};
    const hipError_t error = functions.hipDeviceGetAttribute(
        &processors.xcds, hip::hipDeviceAttributeNumberOfXccs, device.ordinal);
    if (error != hip::hipSuccess) functions.hipGetLastError();  // clear the error for the next caller
    if (error != hip::hipSuccess || processors.xcds < 1)
        processors.xcds = xcds_by_compute_units(device, processors.compute_units);
    return processors;
}

Device read_device(HipLibrary& library, int ordinal) {
    Properties properties;
    library.check(library.functions.hipGetDevicePropertiesR0600(properties.bytes, ordinal),
                  "reading the properties of device " + std::to_string(ordinal) + " of " + library.path());
    Device device;
    device.library = &library;
    device.ordinal = ordinal;
    device.name = properties.text(hip::device_properties::name);
    // "gfx942:sramecc+:xnack-": the features are irrelevant, as our objects accept either setting.
    const std::string arch = properties.text(hip::device_properties::gcn_arch_name);
    device.arch = arch.substr(0, arch.find(':'));
    device.processors = read_processors(device);
    device.lds_bytes = attribute(device, hip::hipDeviceAttributeMaxSharedMemoryPerBlock);
    return device;
}

// Every launch locks it: a forked child must find it unlocked and the map intact.
std::mutex mutex;
[[maybe_unused]] const int handlers =
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });

const Device& cached_device(HipLibrary& library, int ordinal) {
    static auto& devices = *new std::map<std::pair<HipLibrary*, int>, std::unique_ptr<const Device>>;
    std::lock_guard lock(mutex);
    auto& slot = devices[{&library, ordinal}];
    if (!slot) slot = std::make_unique<const Device>(read_device(library, ordinal));
    return *slot;
}

}  // namespace

const Device& any_hip_device(int ordinal) {
    const SystemHip& hip = system_hip();
    if (hip.device_count == 0) throw Error(hip.message);
    if (ordinal < 0 || ordinal >= hip.device_count) {
        throw Error("HIP device " + std::to_string(ordinal) + " does not exist; " + hip.library->path() +
                    " has " + std::to_string(hip.device_count));
    }
    return cached_device(*hip.library, ordinal);
}

const Device& hip_device(int ordinal) {
    const Device& device = any_hip_device(ordinal);
    if (device.arch != "gfx942" && device.arch != "gfx950") {
        throw Error("HIP device " + std::to_string(ordinal) + " (" + device.name + ") is a " + device.arch +
                    "; hipkittens has kernels for gfx942 (MI300X, MI325X) and gfx950 (MI350X, MI355X)");
    }
    return device;
}

const Device& simulated_device(std::string_view arch) {
    HipLibrary& library = simulator();
    int count = 0;
    library.check(library.functions.hipGetDeviceCount(&count), "counting simulated devices");
    for (int ordinal = 0; ordinal < count; ++ordinal) {
        const Device& device = cached_device(library, ordinal);
        if (device.arch == arch) return device;
    }
    throw Error("there is no simulated " + std::string(arch) + "; choose gfx942 or gfx950");
}

Processors processors_of(const Device& device) {
    return device.library->is_simulator() ? read_processors(device) : device.processors;
}

CurrentDevice::CurrentDevice(const Device& device) : device_(device) {
    const HipFunctions& functions = device.library->functions;
    device.library->check(functions.hipGetDevice(&before_), "asking for the current device");
    if (before_ != device.ordinal) {
        device.library->check(functions.hipSetDevice(device.ordinal),
                              "selecting device " + std::to_string(device.ordinal));
    }
}

CurrentDevice::~CurrentDevice() {
    if (before_ != device_.ordinal) device_.library->functions.hipSetDevice(before_);
}

}  // namespace hipkittens::runtime
