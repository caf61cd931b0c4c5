// simulator/hip_attributes.cpp: what HIP tells of a device: attributes and properties.
// SPDX-License-Identifier: MIT
#include <cstring>
#include <utility>

#include "simulator/hip_objects.h"
#include "simulator/visible_devices.h"

namespace hipkittens::simulator {

using namespace hip;

namespace {

int attribute_value(int device, int attribute) {
    const DeviceFacts& facts = visible_device(device);
    switch (attribute) {
        case hipDeviceAttributeEccEnabled:
            return 1;
        case hipDeviceAttributeAsyncEngineCount:
            return 0;  // copies run synchronously
        case hipDeviceAttributeCanMapHostMemory:
        case hipDeviceAttributeCanUseHostPointerForRegisteredMem:
        case hipDeviceAttributeConcurrentManagedAccess:
        case hipDeviceAttributeDirectManagedMemAccessFromHost:
        case hipDeviceAttributeHostNativeAtomicSupported:
        case hipDeviceAttributeManagedMemory:
        case hipDeviceAttributeIsLargeBar:
        case hipDeviceAttributeFineGrainSupport:
            return 1;  // guest addresses are host addresses
        case hipDeviceAttributeMemoryPoolsSupported:
        case hipDeviceAttributeVirtualMemoryManagementSupported:
        case hipDeviceAttributeCanUseStreamWaitValue:
            return 1;
        case hipDeviceAttributeClockRate:
            return facts.clock_khz;
        case hipDeviceAttributeConcurrentKernels:
            return 0;
        case hipDeviceAttributeCooperativeLaunch:
            return 1;
        case hipDeviceAttributeIntegrated:
            return 0;
        case hipDeviceAttributeL2CacheSize:
            return facts.l2_bytes;
        case hipDeviceAttributeComputeCapabilityMajor:
            return facts.major;
        case hipDeviceAttributeComputeCapabilityMinor:
            return facts.minor;
        case hipDeviceAttributePageableMemoryAccess:
            return 0;  // kernels access memory known to HIP, and no other host memory
        case hipDeviceAttributeMaxBlockDimX:
        case hipDeviceAttributeMaxBlockDimY:
        case hipDeviceAttributeMaxBlockDimZ:
        case hipDeviceAttributeMaxThreadsDim:
        case hipDeviceAttributeMaxThreadsPerBlock:
            return max_workgroup_size;
        case hipDeviceAttributeMaxGridDimX:
            return static_cast<int>(max_grid_x);
        case hipDeviceAttributeMaxGridDimY:
        case hipDeviceAttributeMaxGridDimZ:
            return static_cast<int>(max_grid_yz);
        case hipDeviceAttributeMaxThreadsPerMultiProcessor:
            return wave_size * max_waves_per_simd * simds_per_compute_unit;
        case hipDeviceAttributeMemoryBusWidth:
            return facts.memory_bus_bits;
        case hipDeviceAttributeMemoryClockRate:
            return facts.memory_clock_khz;
        case hipDeviceAttributeMultiprocessorCount:
        case hipDeviceAttributePhysicalMultiProcessorCount:
            return visible_processors(facts).compute_units;
        case hipDeviceAttributePciBusId:
            return device + 1;
        case hipDeviceAttributePciDeviceId:
        case hipDeviceAttributePciDomainId:
            return 0;
        case hipDeviceAttributeMaxRegistersPerBlock:
        case hipDeviceAttributeMaxRegistersPerMultiprocessor:
            return vgprs_per_simd_lane * wave_size * simds_per_compute_unit;
        case hipDeviceAttributeMaxSharedMemoryPerBlock:
        case hipDeviceAttributeSharedMemPerBlockOptin:
        case hipDeviceAttributeSharedMemPerMultiprocessor:
        case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor:
            return static_cast<int>(facts.lds_bytes);
        case hipDeviceAttributeUnifiedAddressing:
            return 1;
        case hipDeviceAttributeWarpSize:
            return wave_size;
        case hipDeviceAttributeHostRegisterSupported:
            return 1;
        case hipDeviceAttributeMaxBlocksPerMultiProcessor:
            return max_waves_per_simd * simds_per_compute_unit;
        case hipDeviceAttributeMaxPitch:
        case hipDeviceAttributeTotalConstantMemory:
            return INT32_MAX;  // constant memory is global memory
        case hipDeviceAttributeTextureAlignment:
        case hipDeviceAttributeTexturePitchAlignment:
            return 256;
        case hipDeviceAttributeMaxAvailableVgprsPerThread:
            return vgprs_per_simd_lane;
        case hipDeviceAttributeClockInstructionRate:
        case hipDeviceAttributeWallClockRate:
            return 100000;  // s_memrealtime counts at 100 MHz
        case hipDeviceAttributeNumberOfXccs:
            return visible_processors(facts).xccs;
        case hipDeviceAttributeUnused1:
        case hipDeviceAttributeUnused2:
        case hipDeviceAttributeUnused3:
        case hipDeviceAttributeUnused4:
        case hipDeviceAttributeUnused5:
            break;
        default:  // images, boards of several GPUs, drivers of other systems: there are none
            if ((attribute >= 0 && attribute <= hipDeviceAttributeCudaCompatibleLast) ||
                (attribute >= hipDeviceAttributeClockInstructionRate &&
                 attribute <= hipDeviceAttributeAmdSpecificLast))
                return 0;
    }
    throw HipError(hipErrorInvalidValue, "HIP has no attribute " + std::to_string(attribute));
}

void fill_properties(uint8_t* properties, int device) {
    const DeviceFacts& facts = visible_device(device);
    namespace at = device_properties;
    std::memset(properties, 0, at::bytes);
    const auto put = [&](size_t offset, auto value) {
        std::memcpy(properties + offset, &value, sizeof value);
    };
    const auto put_text = [&](size_t offset, const char* text) {
        std::memcpy(properties + offset, text, std::strlen(text));
    };
    put_text(at::name, facts.name);
    put_text(at::gcn_arch_name, facts.gcn_arch_name);
    put(at::total_global_memory, size_t{facts.memory_bytes});
    put(at::shared_memory_per_block, size_t{facts.lds_bytes});
    put(at::shared_memory_per_multiprocessor, size_t{facts.lds_bytes});
    put(at::max_shared_memory_per_multiprocessor, size_t{facts.lds_bytes});
    for (int dimension = 0; dimension < 3; ++dimension) {
        put(at::max_threads_dimensions + 4 * dimension, max_workgroup_size);
        put(at::max_grid_size + 4 * dimension, static_cast<int>(dimension == 0 ? max_grid_x : max_grid_yz));
    }
    const std::pair<size_t, int> same_as_attribute[] = {
        {at::registers_per_block, hipDeviceAttributeMaxRegistersPerBlock},
        {at::warp_size, hipDeviceAttributeWarpSize},
        {at::max_threads_per_block, hipDeviceAttributeMaxThreadsPerBlock},
        {at::clock_rate, hipDeviceAttributeClockRate},
        {at::major, hipDeviceAttributeComputeCapabilityMajor},
        {at::minor, hipDeviceAttributeComputeCapabilityMinor},
        {at::multiprocessor_count, hipDeviceAttributeMultiprocessorCount},
        {at::can_map_host_memory, hipDeviceAttributeCanMapHostMemory},
        {at::unified_addressing, hipDeviceAttributeUnifiedAddressing},
        {at::memory_clock_rate, hipDeviceAttributeMemoryClockRate},
        {at::memory_bus_width, hipDeviceAttributeMemoryBusWidth},
        {at::l2_cache_size, hipDeviceAttributeL2CacheSize},
        {at::max_threads_per_multiprocessor, hipDeviceAttributeMaxThreadsPerMultiProcessor},
        {at::registers_per_multiprocessor, hipDeviceAttributeMaxRegistersPerMultiprocessor},
        {at::cooperative_launch, hipDeviceAttributeCooperativeLaunch},
        {at::host_register_supported, hipDeviceAttributeHostRegisterSupported},
        {at::clock_instruction_rate, hipDeviceAttributeWallClockRate},
    };
    for (const auto& [offset, attribute] : same_as_attribute) put(offset, attribute_value(device, attribute));
}

}  // namespace

HIPKITTENS_EXPORT hipError_t hipDeviceGetAttribute(int* value, int attribute, int device) {
    return call("hipDeviceGetAttribute", [&] {
        require_pointer(value, "value");
        *value = attribute_value(checked_device(device), attribute);
    });
}
HIPKITTENS_EXPORT hipError_t hipGetDevicePropertiesR0600(void* properties, int device) {
    return call("hipGetDevicePropertiesR0600", [&] {
        require_pointer(properties, "properties");
        fill_properties(static_cast<uint8_t*>(properties), checked_device(device));
    });
}
}  // namespace hipkittens::simulator
