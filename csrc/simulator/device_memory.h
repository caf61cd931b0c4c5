// simulator/device_memory.h: the memory that hipMalloc returned and hipHostRegister registered.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "hip/hip_abi.h"
#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator {

// Shared by all simulated devices: guest addresses are host addresses.
class DeviceMemory {
  public:
    // The last byte, rounded up to 256, is followed by an inaccessible guard page; the first is preceded by one.
    // `function` is the caller's name, for names in reports.
    void* allocate(size_t bytes, size_t capacity, bool poison, const char* function,
                   hip::hipMemoryType type = hip::hipMemoryTypeDevice);
    void free(void* pointer);  // throws HipError for a pointer allocate did not return
    void register_host(void* pointer, size_t bytes);
    void unregister_host(void* pointer);

    // Throws unless [pointer, pointer + bytes) is in one allocation or registered range.
    void check_device_range(const void* pointer, size_t bytes, const char* what);
    // Throws if the range begins in an allocation and ends outside it. Other host memory passes.
    void check_any_range(const void* pointer, size_t bytes, const char* what);
    std::string freed_at(uint64_t address);  // the name of the freed allocation that contained it, or ""
    bool holds(const void* pointer);
    hip::hipMemoryType type_of(const void* pointer);  // unregistered: unknown to HIP
    // The allocation or registered range that holds the pointer. Throws HipError if none does.
    std::pair<void*, size_t> range_of(const void* pointer);
    size_t allocated_bytes();
    // A range that was mapped elsewhere (hipMemMap), and its removal.
    void add_mapped(void* pointer, size_t bytes);
    void remove_mapped(void* pointer);

    // The memory a launch may touch, and its names, which live as long as the result.
    struct Regions {
        std::vector<Region> regions;
        std::vector<std::shared_ptr<const std::string>> names;
    };
    Regions regions();

    // For fork_handlers.cpp.
    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }

    // A launch holds this shared: hipFree waits for running kernels, as on a device.
    std::shared_mutex launches;

  private:
    struct Block {
        size_t bytes = 0;
        void* mapping = nullptr;  // null: registered host memory
        size_t mapping_bytes = 0;
        std::shared_ptr<const std::string> name;
        uint32_t unwritten = 0;
        hip::hipMemoryType type = hip::hipMemoryTypeDevice;
    };
    const std::pair<const uintptr_t, Block>* find(
        uintptr_t address) const;  // the block that begins at or below it

    struct Freed {
        uint64_t begin, end;
        std::shared_ptr<const std::string> name;
    };

    std::mutex mutex_;
    std::deque<Freed> freed_;  // the latest ones, without those whose addresses were reused
    std::map<uintptr_t, Block> blocks_;
    size_t allocated_bytes_ = 0;
    uint64_t count_ = 0;
};

DeviceMemory& device_memory();

}  // namespace hipkittens::simulator
