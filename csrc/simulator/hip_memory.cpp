// simulator/hip_memory.cpp: HIP's functions for memory and copies, on simulated devices.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>

#include "simulator/device_memory.h"
#include "simulator/devices.h"
#include "simulator/hip_objects.h"

namespace hipkittens::simulator {

using namespace hip;

namespace {

void copy(void* destination, const void* source, size_t bytes, int kind) {
    if (bytes == 0) return;
    require_pointer(destination, "destination");
    require_pointer(source, "source");
    if (kind < hipMemcpyHostToHost || kind > hipMemcpyDefault) {
        throw HipError(hipErrorInvalidMemcpyDirection, "kind " + std::to_string(kind) + " is none of 0 to 4");
    }
    DeviceMemory& memory = device_memory();
    const bool to_device = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
    const bool from_device = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
    const auto check = [&](const void* pointer, bool is_device, const char* what) {
        is_device ? memory.check_device_range(pointer, bytes, what)
                  : memory.check_any_range(pointer, bytes, what);
    };
    check(destination, to_device, "destination");
    check(source, from_device, "source");
    std::memmove(destination, source, bytes);
}

void fill(void* destination, int value, size_t bytes) {
    if (bytes == 0) return;
    require_pointer(destination, "destination");
    device_memory().check_device_range(destination, bytes, "destination");
    std::memset(destination, value, bytes);
}

}  // namespace

HIPKITTENS_EXPORT hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
    return call("hipMemGetInfo", [&] {
        const size_t total = devices[thread_state().device].memory_bytes,
                     used = device_memory().allocated_bytes();
        if (free_bytes) *free_bytes = total - std::min(total, used);
        if (total_bytes) *total_bytes = total;
    });
}
HIPKITTENS_EXPORT hipError_t hipMalloc(void** pointer, size_t bytes) {
    return call("hipMalloc", [&] {
        require_pointer(pointer, "pointer");
        const size_t capacity = devices[thread_state().device].memory_bytes;
        *pointer =
            bytes ? device_memory().allocate(bytes, capacity, thread_state().settings.poison != 0) : nullptr;
    });
}
HIPKITTENS_EXPORT hipError_t hipFree(void* pointer) {
    return call("hipFree", [&] {
        if (pointer) device_memory().free(pointer);
    });
}
HIPKITTENS_EXPORT hipError_t hipHostRegister(void* pointer, size_t bytes, unsigned int flags) {
    return call("hipHostRegister", [&] {
        require_pointer(pointer, "pointer");
        require(bytes > 0, hipErrorInvalidValue, "bytes must be above 0");
        require(flags <= 0xf, hipErrorInvalidValue, "flags has unknown bits");
        device_memory().register_host(pointer, bytes);
    });
}
HIPKITTENS_EXPORT hipError_t hipHostUnregister(void* pointer) {
    return call("hipHostUnregister", [&] { device_memory().unregister_host(pointer); });
}
HIPKITTENS_EXPORT hipError_t hipHostGetDevicePointer(void** device_pointer, void* host_pointer,
                                                     unsigned int flags) {
    return call("hipHostGetDevicePointer", [&] {
        require_pointer(device_pointer, "device_pointer");
        require(flags == 0, hipErrorInvalidValue, "flags must be 0");
        require(device_memory().holds(host_pointer), hipErrorInvalidValue,
                "the host pointer was not registered");
        *device_pointer = host_pointer;
    });
}
HIPKITTENS_EXPORT hipError_t hipMemcpy(void* destination, const void* source, size_t bytes, int kind) {
    return call("hipMemcpy", [&] { copy(destination, source, bytes, kind); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyAsync(void* destination, const void* source, size_t bytes, int kind,
                                            hipStream_t stream) {
    return call("hipMemcpyAsync", [&] {
        check_stream(stream);
        copy(destination, source, bytes, kind);
    });
}
HIPKITTENS_EXPORT hipError_t hipMemset(void* destination, int value, size_t bytes) {
    return call("hipMemset", [&] { fill(destination, value, bytes); });
}
HIPKITTENS_EXPORT hipError_t hipMemsetAsync(void* destination, int value, size_t bytes, hipStream_t stream) {
    return call("hipMemsetAsync", [&] {
        check_stream(stream);
        fill(destination, value, bytes);
    });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyHtoD(void* destination, void* source, size_t bytes) {
    return call("hipMemcpyHtoD", [&] { copy(destination, source, bytes, hipMemcpyHostToDevice); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyDtoH(void* destination, void* source, size_t bytes) {
    return call("hipMemcpyDtoH", [&] { copy(destination, source, bytes, hipMemcpyDeviceToHost); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyDtoD(void* destination, void* source, size_t bytes) {
    return call("hipMemcpyDtoD", [&] { copy(destination, source, bytes, hipMemcpyDeviceToDevice); });
}

// What a program may ask of a pointer that hipMalloc returned or hipHostRegister named; guest addresses are host addresses.
HIPKITTENS_EXPORT hipError_t hipPointerGetAttribute(void* value, int attribute, void* pointer) {
    return call("hipPointerGetAttribute", [&] {
        require_pointer(value, "value");
        require(device_memory().holds(pointer), hipErrorInvalidValue,
                "the pointer is in no allocation and no registered range");
        const auto put = [&](auto what) { std::memcpy(value, &what, sizeof what); };
        switch (attribute) {
            case HIP_POINTER_ATTRIBUTE_DEVICE_POINTER:
            case HIP_POINTER_ATTRIBUTE_HOST_POINTER:
                return put(pointer);
            case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE:
                return put(hipMemoryTypeDevice);
            case HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
                return put(thread_state().device);
            default:
                throw HipError(hipErrorInvalidValue,
                               "attribute " + std::to_string(attribute) + " is not answered here");
        }
    });
}

}  // namespace hipkittens::simulator
