// simulator/hip_memory.cpp: HIP's functions that give out memory, and tell of it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>

#include "simulator/device_memory.h"
#include "simulator/hip_objects.h"
#include "simulator/memory_operations.h"
#include "simulator/visible_devices.h"

namespace hipkittens::simulator {

using namespace hip;

void* allocate(size_t bytes, const char* function, hipMemoryType type) {
    if (bytes == 0) return nullptr;
    const size_t capacity = visible_device(checked_device(thread_state().device)).memory_bytes;
    return device_memory().allocate(bytes, capacity, thread_state().settings.poison != 0, function, type);
}

namespace {

void free_any(void* pointer) {
    if (pointer) device_memory().free(pointer);
}

}  // namespace

HIPKITTENS_EXPORT hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
    return call("hipMemGetInfo", [&] {
        const size_t total = visible_device(checked_device(thread_state().device)).memory_bytes,
                     used = device_memory().allocated_bytes();
        if (free_bytes) *free_bytes = total - std::min(total, used);
        if (total_bytes) *total_bytes = total;
    });
}
HIPKITTENS_EXPORT hipError_t hipMalloc(void** pointer, size_t bytes) {
    return call("hipMalloc", [&] {
        require_pointer(pointer, "pointer");
        *pointer = allocate(bytes, "hipMalloc");
    });
}
HIPKITTENS_EXPORT hipError_t hipFree(void* pointer) {
    return call("hipFree", [&] { free_any(pointer); });
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
// Host memory that kernels can access, and managed memory, are device memory: there is one address space.
HIPKITTENS_EXPORT hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned int) {
    return call("hipHostMalloc", [&] {
        require_pointer(pointer, "pointer");
        *pointer = allocate(bytes, "hipHostMalloc", hipMemoryTypeHost);
    });
}
HIPKITTENS_EXPORT hipError_t hipHostAlloc(void** pointer, size_t bytes, unsigned int) {
    return call("hipHostAlloc", [&] {
        require_pointer(pointer, "pointer");
        *pointer = allocate(bytes, "hipHostAlloc", hipMemoryTypeHost);
    });
}
HIPKITTENS_EXPORT hipError_t hipMallocHost(void** pointer, size_t bytes) {
    return call("hipMallocHost", [&] {
        require_pointer(pointer, "pointer");
        *pointer = allocate(bytes, "hipMallocHost", hipMemoryTypeHost);
    });
}
HIPKITTENS_EXPORT hipError_t hipMallocManaged(void** pointer, size_t bytes, unsigned int) {
    return call("hipMallocManaged", [&] {
        require_pointer(pointer, "pointer");
        *pointer = allocate(bytes, "hipMallocManaged", hipMemoryTypeManaged);
    });
}
HIPKITTENS_EXPORT hipError_t hipExtMallocWithFlags(void** pointer, size_t bytes, unsigned int) {
    return call("hipExtMallocWithFlags", [&] {
        require_pointer(pointer, "pointer");
        *pointer = allocate(bytes, "hipExtMallocWithFlags");
    });
}
HIPKITTENS_EXPORT hipError_t hipHostFree(void* pointer) {
    return call("hipHostFree", [&] { free_any(pointer); });
}
HIPKITTENS_EXPORT hipError_t hipFreeHost(void* pointer) {
    return call("hipFreeHost", [&] { free_any(pointer); });
}
HIPKITTENS_EXPORT hipError_t hipHostGetFlags(unsigned int* flags, void* pointer) {
    return call("hipHostGetFlags", [&] {
        require_pointer(flags, "flagsPtr");
        require(device_memory().holds(pointer), hipErrorInvalidValue, "the pointer is in no memory of HIP's");
        *flags = 0;
    });
}
// The location of managed memory makes no difference here.
HIPKITTENS_EXPORT hipError_t hipMemPrefetchAsync(const void* pointer, size_t bytes, int, hipStream_t stream) {
    return call("hipMemPrefetchAsync", [&] {
        check_stream(stream);
        device_memory().check_device_range(pointer, bytes, "dev_ptr");
    });
}
HIPKITTENS_EXPORT hipError_t hipMemAdvise(const void* pointer, size_t bytes, int, int) {
    return call("hipMemAdvise", [&] { device_memory().check_device_range(pointer, bytes, "dev_ptr"); });
}

// The attributes of a pointer that hipMalloc returned or hipHostRegister registered; guest addresses are host addresses.
static void tell_of_pointer(void* value, int attribute, void* pointer) {
    require_pointer(value, "value");
    require(device_memory().holds(pointer), hipErrorInvalidValue,
            "the pointer is in no allocation and no registered range");
    const auto put = [&](auto what) { std::memcpy(value, &what, sizeof what); };
    switch (attribute) {
        case HIP_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case HIP_POINTER_ATTRIBUTE_HOST_POINTER:
            return put(pointer);
        case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return put(device_memory().type_of(pointer));
        case HIP_POINTER_ATTRIBUTE_IS_MANAGED:
            return put(device_memory().type_of(pointer) == hipMemoryTypeManaged);
        case HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            return put(thread_state().device);
        case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return put(device_memory().range_of(pointer).first);
        case HIP_POINTER_ATTRIBUTE_RANGE_SIZE:
            return put(device_memory().range_of(pointer).second);
        case HIP_POINTER_ATTRIBUTE_MAPPED:
            return put(true);
        default:
            throw HipError(hipErrorInvalidValue,
                           "attribute " + std::to_string(attribute) + " is not answered here");
    }
}
HIPKITTENS_EXPORT hipError_t hipPointerGetAttribute(void* value, int attribute, void* pointer) {
    return call("hipPointerGetAttribute", [&] { tell_of_pointer(value, attribute, pointer); });
}
HIPKITTENS_EXPORT hipError_t hipDrvPointerGetAttributes(unsigned int count, const int* attributes,
                                                        void** values, void* pointer) {
    return call("hipDrvPointerGetAttributes", [&] {
        require(count > 0, hipErrorInvalidValue, "numAttributes is 0");
        require_pointer(attributes, "attributes");
        require_pointer(values, "data");
        for (unsigned int i = 0; i < count; ++i) tell_of_pointer(values[i], attributes[i], pointer);
    });
}

HIPKITTENS_EXPORT hipError_t hipPointerGetAttributes(PointerAttributes* attributes, const void* pointer) {
    return call("hipPointerGetAttributes", [&] {
        require_pointer(attributes, "attributes");
        *attributes = {hipMemoryTypeUnregistered, -1, nullptr, nullptr, 0, 0};
        const hipMemoryType type = device_memory().type_of(pointer);
        if (type == hipMemoryTypeUnregistered) return;  // as in HIP 6 and later: unknown memory is no error
        void* const address = const_cast<void*>(pointer);
        *attributes = {type, thread_state().device, address, address, type == hipMemoryTypeManaged, 0};
    });
}
HIPKITTENS_EXPORT hipError_t hipMemGetAddressRange(void** base, size_t* bytes, void* pointer) {
    return call("hipMemGetAddressRange", [&] {
        const auto [begin, size] = device_memory().range_of(pointer);
        if (base) *base = begin;
        if (bytes) *bytes = size;
    });
}
HIPKITTENS_EXPORT hipError_t hipMemPtrGetInfo(void* pointer, size_t* bytes) {
    return hipMemGetAddressRange(nullptr, bytes, pointer);
}

}  // namespace hipkittens::simulator
