// simulator/hip_virtual_memory.cpp: HIP's functions for addresses and memory that are had apart and mapped together.
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <map>
#include <mutex>

#include "simulator/device_memory.h"
#include "simulator/hip_objects.h"
#include "simulator/visible_devices.h"

namespace hipkittens::simulator {

using namespace hip;

namespace {

constexpr size_t granularity = size_t{2} << 20;  // what ROCm reports on these devices

struct Allocation {
    size_t bytes;
    int file;  // its pages
};

struct VirtualMemory {
    std::mutex mutex;
    std::map<uintptr_t, size_t> reserved;
    std::map<uintptr_t, Allocation> allocations;  // by handle
    std::map<uintptr_t, size_t> mapped;
    uintptr_t handles = uintptr_t{0x100a} << 48;
};
VirtualMemory& virtual_memory() {
    static VirtualMemory& all = *new VirtualMemory;
    return all;
}

void require_whole(size_t bytes) {
    require(bytes > 0 && bytes % granularity == 0, hipErrorInvalidValue,
            "sizes are multiples of the granularity, 2 MiB (hipMemGetAllocationGranularity)");
}

uintptr_t number(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

hipMemGenericAllocationHandle_t add_allocation(size_t bytes, int file) {
    std::lock_guard lock(virtual_memory().mutex);
    virtual_memory().handles += 16;
    virtual_memory().allocations[virtual_memory().handles] = {bytes, file};
    return reinterpret_cast<hipMemGenericAllocationHandle_t>(virtual_memory().handles);
}

void require_descriptor(int type) {
    if (type != 1) {
        throw HipError(hipErrorNotSupported,
                       "handles of type " + std::to_string(type) +
                           "; memory is shared by hipMemHandleTypePosixFileDescriptor (1) alone");
    }
}

}  // namespace

HIPKITTENS_EXPORT hipError_t hipMemGetAllocationGranularity(size_t* bytes, const void* properties, int) {
    return call("hipMemGetAllocationGranularity", [&] {
        require_pointer(bytes, "granularity");
        require_pointer(properties, "prop");
        *bytes = granularity;
    });
}
HIPKITTENS_EXPORT hipError_t hipMemAddressReserve(void** pointer, size_t bytes, size_t alignment, void*,
                                                  unsigned long long flags) {
    return call("hipMemAddressReserve", [&] {
        require_pointer(pointer, "ptr");
        require(flags == 0, hipErrorInvalidValue, "flags must be 0");
        require_whole(bytes);
        const size_t step = std::max(alignment, granularity);
        require((step & (step - 1)) == 0, hipErrorInvalidValue, "the alignment is no power of two");
        void* const mapping =
            mmap(nullptr, bytes + step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        require(mapping != MAP_FAILED, hipErrorOutOfMemory, "the host has no such range of addresses");
        const uintptr_t begin = (number(mapping) + step - 1) / step * step;
        if (begin > number(mapping)) munmap(mapping, begin - number(mapping));
        munmap(reinterpret_cast<void*>(begin + bytes), number(mapping) + step - begin);
        std::lock_guard lock(virtual_memory().mutex);
        virtual_memory().reserved[begin] = bytes;
        *pointer = reinterpret_cast<void*>(begin);
    });
}
HIPKITTENS_EXPORT hipError_t hipMemAddressFree(void* pointer, size_t bytes) {
    return call("hipMemAddressFree", [&] {
        VirtualMemory& all = virtual_memory();
        std::lock_guard lock(all.mutex);
        const auto found = all.reserved.find(number(pointer));
        require(found != all.reserved.end() && found->second == bytes, hipErrorInvalidValue,
                "hipMemAddressReserve gave out no such range");
        const auto first = all.mapped.lower_bound(number(pointer));
        require(first == all.mapped.end() || first->first >= number(pointer) + bytes, hipErrorInvalidValue,
                "memory is still mapped there; hipMemUnmap it first");
        munmap(pointer, bytes);
        all.reserved.erase(found);
    });
}
HIPKITTENS_EXPORT hipError_t hipMemCreate(hipMemGenericAllocationHandle_t* handle, size_t bytes,
                                          const void* properties, unsigned long long flags) {
    return call("hipMemCreate", [&] {
        require_pointer(handle, "handle");
        require_pointer(properties, "prop");
        require(flags == 0, hipErrorInvalidValue, "flags must be 0");
        require_whole(bytes);
        const size_t capacity = visible_device(checked_device(thread_state().device)).memory_bytes;
        require(bytes <= capacity, hipErrorOutOfMemory, "the device has less memory");
        const int file = memfd_create("hipkittens_allocation", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
            if (file >= 0) close(file);
            throw HipError(hipErrorOutOfMemory,
                           "the host has no " + std::to_string(bytes) + " bytes to give");
        }
        *handle = add_allocation(bytes, file);
    });
}
// A handle's pages are a file: its descriptor, passed to another process, refers to the same memory there.
HIPKITTENS_EXPORT hipError_t hipMemExportToShareableHandle(void* shareable,
                                                           hipMemGenericAllocationHandle_t handle, int type,
                                                           unsigned long long flags) {
    return call("hipMemExportToShareableHandle", [&] {
        require_pointer(shareable, "shareableHandle");
        require(flags == 0, hipErrorInvalidValue, "flags must be 0");
        require_descriptor(type);
        std::lock_guard lock(virtual_memory().mutex);
        const auto found = virtual_memory().allocations.find(number(handle));
        require(found != virtual_memory().allocations.end(), hipErrorInvalidValue, "the handle is unknown");
        const int copied = fcntl(found->second.file, F_DUPFD_CLOEXEC, 0);
        require(copied >= 0, hipErrorOperatingSystem, "the host has no file descriptor left");
        std::memcpy(shareable, &copied, sizeof copied);
    });
}
HIPKITTENS_EXPORT hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t* handle,
                                                             void* shareable, int type) {
    return call("hipMemImportFromShareableHandle", [&] {
        require_pointer(handle, "handle");
        require_descriptor(type);
        // The descriptor itself; before ROCm 7.1, and in programs written for it, the address of a
        // descriptor.
        int descriptor = static_cast<int>(number(shareable));
        if (number(shareable) > INT_MAX) std::memcpy(&descriptor, shareable, sizeof descriptor);
        struct stat of{};
        require(fstat(descriptor, &of) == 0 && S_ISREG(of.st_mode) && of.st_size > 0 &&
                    static_cast<size_t>(of.st_size) % granularity == 0,
                hipErrorInvalidValue, "osHandle is no descriptor of hipMemExportToShareableHandle");
        const int copied = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
        require(copied >= 0, hipErrorOperatingSystem, "the host has no file descriptor left");
        *handle = add_allocation(static_cast<size_t>(of.st_size), copied);
    });
}
HIPKITTENS_EXPORT hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle) {
    return call("hipMemRelease", [&] {  // a mapping keeps the pages
        std::lock_guard lock(virtual_memory().mutex);
        const auto found = virtual_memory().allocations.find(number(handle));
        require(found != virtual_memory().allocations.end(), hipErrorInvalidValue, "the handle is unknown");
        close(found->second.file);
        virtual_memory().allocations.erase(found);
    });
}
HIPKITTENS_EXPORT hipError_t hipMemMap(void* pointer, size_t bytes, size_t offset,
                                       hipMemGenericAllocationHandle_t handle, unsigned long long flags) {
    return call("hipMemMap", [&] {
        require(flags == 0, hipErrorInvalidValue, "flags must be 0");
        require(offset == 0, hipErrorInvalidValue, "offset must be 0");
        VirtualMemory& all = virtual_memory();
        std::lock_guard lock(all.mutex);
        const auto found = all.allocations.find(number(handle));
        require(found != all.allocations.end(), hipErrorInvalidValue, "the handle is unknown");
        require(bytes == found->second.bytes, hipErrorInvalidValue, "the size is not the allocation's");
        auto range = all.reserved.upper_bound(number(pointer));
        require(range != all.reserved.begin() && (--range)->first + range->second >= number(pointer) + bytes,
                hipErrorInvalidValue, "the addresses are not reserved");
        auto other = all.mapped.lower_bound(number(pointer) + bytes);
        require(other == all.mapped.begin() || (--other)->first + other->second <= number(pointer),
                hipErrorInvalidValue, "memory is mapped there already");
        require(mmap(pointer, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, found->second.file, 0) !=
                    MAP_FAILED,
                hipErrorMapFailed, "the host cannot map it");
        all.mapped[number(pointer)] = bytes;
    });
}
HIPKITTENS_EXPORT hipError_t hipMemUnmap(void* pointer, size_t bytes) {
    return call("hipMemUnmap", [&] {
        VirtualMemory& all = virtual_memory();
        std::lock_guard lock(all.mutex);
        const auto found = all.mapped.find(number(pointer));
        require(found != all.mapped.end() && found->second == bytes, hipErrorInvalidValue,
                "hipMemMap mapped no such range");
        device_memory().remove_mapped(pointer);
        mmap(pointer, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        all.mapped.erase(found);
    });
}
// A device with access to the range may read and write it; until then kernels and copies may not.
HIPKITTENS_EXPORT hipError_t hipMemSetAccess(void* pointer, size_t bytes, const void* descriptions,
                                             size_t count) {
    return call("hipMemSetAccess", [&] {
        require_pointer(descriptions, "desc");
        require(count > 0, hipErrorInvalidValue, "count is 0");
        std::lock_guard lock(virtual_memory().mutex);
        auto each = virtual_memory().mapped.lower_bound(number(pointer));
        const uintptr_t end = number(pointer) + bytes;
        require(each != virtual_memory().mapped.end() && each->first < end, hipErrorInvalidValue,
                "no memory is mapped there");
        for (; each != virtual_memory().mapped.end() && each->first < end; ++each)
            device_memory().add_mapped(reinterpret_cast<void*>(each->first), each->second);
    });
}

}  // namespace hipkittens::simulator
