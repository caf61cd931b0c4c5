// simulator/hip_pool.cpp: HIP's functions for memory that a stream allocates, and its pools.
// SPDX-License-Identifier: MIT
//
// A pool retains nothing: memory is allocated when it is requested, and returned when it is freed.
#include <cstring>

#include "simulator/device_memory.h"
#include "simulator/hip_objects.h"
#include "simulator/memory_operations.h"
#include "simulator/visible_devices.h"

namespace hipkittens::simulator {

using namespace hip;

namespace {

using Pools = DeviceHandles<hipMemPool_t, 0x1009>;
constexpr int first_attribute = 1, last_attribute = 8, release_threshold = 4, largest_flag = 3;

void check_pool(hipMemPool_t pool) {
    require(Pools::device_of(pool) >= 0, hipErrorInvalidValue, "the pool is unknown");
}

void allocate_on(hipStream_t stream, void** pointer, size_t bytes, const char* function) {
    require_pointer(pointer, "dev_ptr");
    check_stream(stream);
    require(!is_captured(stream), hipErrorStreamCaptureUnsupported,
            "memory cannot be allocated in a graph here; allocate it before the capture");
    *pointer = allocate(bytes, function);
}

}  // namespace

HIPKITTENS_EXPORT hipError_t hipMallocAsync(void** pointer, size_t bytes, hipStream_t stream) {
    return call("hipMallocAsync", [&] { allocate_on(stream, pointer, bytes, "hipMallocAsync"); });
}
HIPKITTENS_EXPORT hipError_t hipMallocFromPoolAsync(void** pointer, size_t bytes, hipMemPool_t pool,
                                                    hipStream_t stream) {
    return call("hipMallocFromPoolAsync", [&] {
        check_pool(pool);
        allocate_on(stream, pointer, bytes, "hipMallocFromPoolAsync");
    });
}
HIPKITTENS_EXPORT hipError_t hipFreeAsync(void* pointer, hipStream_t stream) {
    return call("hipFreeAsync", [&] {
        check_stream(stream);
        require(!is_captured(stream), hipErrorStreamCaptureUnsupported,
                "memory cannot be freed in a graph here; free it behind the capture");
        if (pointer) device_memory().free(pointer);
    });
}

// A device's pool is always its default pool.
HIPKITTENS_EXPORT hipError_t hipDeviceGetDefaultMemPool(hipMemPool_t* pool, int device) {
    return call("hipDeviceGetDefaultMemPool", [&] {
        require_pointer(pool, "mem_pool");
        *pool = Pools::handle_of(checked_device(device));
    });
}
HIPKITTENS_EXPORT hipError_t hipDeviceGetMemPool(hipMemPool_t* pool, int device) {
    return hipDeviceGetDefaultMemPool(pool, device);
}
HIPKITTENS_EXPORT hipError_t hipDeviceSetMemPool(int device, hipMemPool_t pool) {
    return call("hipDeviceSetMemPool", [&] {
        checked_device(device);
        check_pool(pool);
    });
}
HIPKITTENS_EXPORT hipError_t hipMemPoolCreate(hipMemPool_t* pool, const void* properties) {
    return call("hipMemPoolCreate", [&] {
        require_pointer(properties, "pool_props");
        int location[4];  // hipMemPoolProps: allocation type, handle types, location type, device
        std::memcpy(location, properties, sizeof location);
        require_pointer(pool, "mem_pool");
        *pool = Pools::handle_of(checked_device(location[3]));
    });
}
HIPKITTENS_EXPORT hipError_t hipMemPoolDestroy(hipMemPool_t pool) {
    return call("hipMemPoolDestroy", [&] { check_pool(pool); });
}
HIPKITTENS_EXPORT hipError_t hipMemPoolTrimTo(hipMemPool_t pool, size_t) {
    return call("hipMemPoolTrimTo", [&] { check_pool(pool); });
}
HIPKITTENS_EXPORT hipError_t hipMemPoolSetAccess(hipMemPool_t pool, const void*, size_t) {
    return call("hipMemPoolSetAccess", [&] { check_pool(pool); });
}
HIPKITTENS_EXPORT hipError_t hipMemPoolSetAttribute(hipMemPool_t pool, int attribute, void* value) {
    return call("hipMemPoolSetAttribute", [&] {
        check_pool(pool);
        require_pointer(value, "value");
        require(attribute >= first_attribute && attribute <= last_attribute, hipErrorInvalidValue,
                "the attribute is none of a pool");
    });
}
HIPKITTENS_EXPORT hipError_t hipMemPoolGetAttribute(hipMemPool_t pool, int attribute, void* value) {
    return call("hipMemPoolGetAttribute", [&] {
        check_pool(pool);
        require_pointer(value, "value");
        require(attribute >= first_attribute && attribute <= last_attribute, hipErrorInvalidValue,
                "the attribute is none of a pool");
        if (attribute <= largest_flag) {
            const int flag = 1;
            std::memcpy(value, &flag, sizeof flag);
            return;
        }
        const uint64_t bytes = attribute == release_threshold ? 0 : device_memory().allocated_bytes();
        std::memcpy(value, &bytes, sizeof bytes);
    });
}

}  // namespace hipkittens::simulator
