// simulator/hip_library.cpp: HIP's functions for devices, streams and events, on simulated devices.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>
#include <mutex>

#include "simulator/devices.h"
#include "simulator/hip_objects.h"
#include "simulator/timed_launches.h"

namespace hipkittens::simulator {

using namespace hip;

ThreadState& thread_state() {
    thread_local ThreadState state;
    return state;
}

// Never destroyed: threads may still be inside the library while the process ends.
Objects& objects() {
    static Objects& all = *new Objects;
    return all;
}

void check_stream(hipStream_t stream) {
    if (stream && stream != stream_legacy && stream != stream_per_thread) objects().streams.get(stream);
}

void check_stream(hipStream_t stream, int device) {
    if (!stream || stream == stream_legacy || stream == stream_per_thread) return;
    const int other = objects().streams.get(stream)->device;
    if (other != device) {
        throw HipError(hipErrorInvalidHandle, "the stream belongs to device " + std::to_string(other) +
                                                  ", the kernel to device " + std::to_string(device));
    }
}

int checked_device(int device) {
    if (device < 0 || device >= device_count) {
        throw HipError(hipErrorInvalidDevice, "device " + std::to_string(device) +
                                                  " does not exist; there are " +
                                                  std::to_string(device_count));
    }
    return device;
}

namespace {

int attribute_value(const DeviceFacts& facts, int attribute) {
    switch (attribute) {
        case hipDeviceAttributeEccEnabled:
            return 1;
        case hipDeviceAttributeAsyncEngineCount:
            return 0;  // copies run when they are called
        case hipDeviceAttributeCanMapHostMemory:
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
        case hipDeviceAttributeManagedMemory:
            return 0;
        case hipDeviceAttributeMaxBlockDimX:
        case hipDeviceAttributeMaxBlockDimY:
        case hipDeviceAttributeMaxBlockDimZ:
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
            return processors_of(facts).compute_units;
        case hipDeviceAttributePciBusId:
            return static_cast<int>(&facts - devices) + 1;
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
        case hipDeviceAttributeWallClockRate:
            return 100000;  // s_memrealtime counts 100 MHz
        case hipDeviceAttributeNumberOfXccs:
            return processors_of(facts).xccs;
        default:
            throw HipError(hipErrorInvalidValue,
                           "attribute " + std::to_string(attribute) +
                               " is none that the simulator answers (hip/hip_abi.h lists them)");
    }
}

void fill_properties(uint8_t* properties, const DeviceFacts& facts) {
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
    for (const auto& [offset, attribute] : same_as_attribute) put(offset, attribute_value(facts, attribute));
}

}  // namespace

HIPKITTENS_EXPORT hipError_t hipInit(unsigned int flags) {
    return call("hipInit", [&] { require(flags == 0, hipErrorInvalidValue, "flags must be 0"); });
}

// major * 10000000 + minor * 100000 + patch, of the HIP version whose ABI this is.
static void version(int* version) {
    require_pointer(version, "version");
    *version = 60000000;
}
HIPKITTENS_EXPORT hipError_t hipDriverGetVersion(int* value) {
    return call("hipDriverGetVersion", [&] { version(value); });
}
HIPKITTENS_EXPORT hipError_t hipRuntimeGetVersion(int* value) {
    return call("hipRuntimeGetVersion", [&] { version(value); });
}

HIPKITTENS_EXPORT hipError_t hipGetDeviceCount(int* count) {
    return call("hipGetDeviceCount", [&] {
        require_pointer(count, "count");
        *count = device_count;
    });
}
HIPKITTENS_EXPORT hipError_t hipGetDevice(int* device) {
    return call("hipGetDevice", [&] {
        require_pointer(device, "device");
        *device = thread_state().device;
    });
}
HIPKITTENS_EXPORT hipError_t hipSetDevice(int device) {
    return call("hipSetDevice", [&] { thread_state().device = checked_device(device); });
}
HIPKITTENS_EXPORT hipError_t hipDeviceGet(int* handle, int ordinal) {
    return call("hipDeviceGet", [&] {
        require_pointer(handle, "handle");
        *handle = checked_device(ordinal);
    });
}
HIPKITTENS_EXPORT hipError_t hipDeviceGetName(char* name, int length, int device) {
    return call("hipDeviceGetName", [&] {
        require_pointer(name, "name");
        require(length > 0, hipErrorInvalidValue, "length must be above 0");
        const char* text = devices[checked_device(device)].name;
        const size_t bytes = std::min(std::strlen(text), static_cast<size_t>(length) - 1);
        std::memcpy(name, text, bytes);
        name[bytes] = 0;
    });
}
HIPKITTENS_EXPORT hipError_t hipDeviceGetAttribute(int* value, int attribute, int device) {
    return call("hipDeviceGetAttribute", [&] {
        require_pointer(value, "value");
        *value = attribute_value(devices[checked_device(device)], attribute);
    });
}
HIPKITTENS_EXPORT hipError_t hipGetDevicePropertiesR0600(void* properties, int device) {
    return call("hipGetDevicePropertiesR0600", [&] {
        require_pointer(properties, "properties");
        fill_properties(static_cast<uint8_t*>(properties), devices[checked_device(device)]);
    });
}
HIPKITTENS_EXPORT hipError_t hipDeviceTotalMem(size_t* bytes, int device) {
    return call("hipDeviceTotalMem", [&] {
        require_pointer(bytes, "bytes");
        *bytes = devices[checked_device(device)].memory_bytes;
    });
}
HIPKITTENS_EXPORT hipError_t hipDeviceSynchronize() { return hipSuccess; }

HIPKITTENS_EXPORT hipError_t hipStreamCreate(hipStream_t* stream) {
    return call("hipStreamCreate", [&] {
        require_pointer(stream, "stream");
        auto object = std::make_shared<Stream>();
        object->device = thread_state().device;
        *stream = objects().streams.add(std::move(object));
    });
}
HIPKITTENS_EXPORT hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags) {
    if (flags > 1) {  // hipStreamNonBlocking: work is done when it is queued, so nothing blocks either way
        return call("hipStreamCreateWithFlags",
                    [&] { throw HipError(hipErrorInvalidValue, "flags has unknown bits"); });
    }
    return hipStreamCreate(stream);
}
HIPKITTENS_EXPORT hipError_t hipStreamDestroy(hipStream_t stream) {
    return call("hipStreamDestroy", [&] { objects().streams.remove(stream); });
}
HIPKITTENS_EXPORT hipError_t hipStreamSynchronize(hipStream_t stream) {
    return call("hipStreamSynchronize", [&] { check_stream(stream); });
}
HIPKITTENS_EXPORT hipError_t hipStreamIsCapturing(hipStream_t stream, int* status) {
    return call("hipStreamIsCapturing", [&] {
        require(status, hipErrorInvalidValue, "a null pointer was passed");
        check_stream(stream);
        *status = hipStreamCaptureStatusNone;  // there are no graphs
    });
}
HIPKITTENS_EXPORT hipError_t hipStreamQuery(hipStream_t stream) {
    return call("hipStreamQuery", [&] { check_stream(stream); });
}
HIPKITTENS_EXPORT hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags) {
    return call("hipStreamWaitEvent", [&] {
        require(flags == 0, hipErrorInvalidValue, "flags must be 0");
        check_stream(stream);
        objects().events.get(event);
    });
}

HIPKITTENS_EXPORT hipError_t hipEventCreate(hipEvent_t* event) {
    return call("hipEventCreate", [&] {
        require_pointer(event, "event");
        *event = objects().events.add(std::make_shared<Event>());
    });
}
HIPKITTENS_EXPORT hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned int) {
    return hipEventCreate(event);  // flags say how the host waits and whether times are kept
}
HIPKITTENS_EXPORT hipError_t hipEventDestroy(hipEvent_t event) {
    return call("hipEventDestroy", [&] { objects().events.remove(event); });
}
HIPKITTENS_EXPORT hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
    return call("hipEventRecord", [&] {
        check_stream(stream);
        const auto object = objects().events.get(event);
        std::lock_guard lock(object->mutex);
        object->is_recorded = true;
        object->time = std::chrono::steady_clock::now();
    });
}
HIPKITTENS_EXPORT hipError_t hipEventSynchronize(hipEvent_t event) {
    return call("hipEventSynchronize", [&] { objects().events.get(event); });
}
HIPKITTENS_EXPORT hipError_t hipEventQuery(hipEvent_t event) {
    return call("hipEventQuery", [&] { objects().events.get(event); });
}
// The host's wall clock: how long the simulation took, not how long a device would have taken.
HIPKITTENS_EXPORT hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
    return call("hipEventElapsedTime", [&] {
        require_pointer(milliseconds, "milliseconds");
        const auto time_of = [](hipEvent_t event) {
            const auto object = objects().events.get(event);
            std::lock_guard lock(object->mutex);
            require(object->is_recorded, hipErrorInvalidHandle, "the event was not recorded");
            return object->time;
        };
        const auto begin = time_of(start), end = time_of(stop);
        *milliseconds = std::chrono::duration<float, std::milli>(end - begin).count();
    });
}

HIPKITTENS_EXPORT const char* hipGetErrorName(hipError_t error) { return error_name(error); }
HIPKITTENS_EXPORT const char* hipGetErrorString(hipError_t error) { return error_text(error); }
HIPKITTENS_EXPORT hipError_t hipGetLastError() {
    const hipError_t last = thread_state().last_error;
    thread_state().last_error = hipSuccess;
    return last;
}
HIPKITTENS_EXPORT hipError_t hipPeekAtLastError() { return thread_state().last_error; }

}  // namespace hipkittens::simulator
