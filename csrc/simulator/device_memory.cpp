// simulator/device_memory.cpp: the memory that hipMalloc returned and hipHostRegister registered.
// SPDX-License-Identifier: MIT
#include "simulator/device_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "simulator/hip_call.h"

namespace hipkittens::simulator {
namespace {

constexpr size_t page = 4096, granule = 256, remembered_frees = 256;

std::string text_of(const void* pointer) {
    char text[32];
    std::snprintf(text, sizeof text, "%p", pointer);
    return text;
}

// A large allocation shows the pattern without consuming memory: its pages are copy-on-write pages of a file
// of poison, so that memory that is never written (a pool that a library reserves) costs nothing.
constexpr size_t poison_file_bytes = size_t{64} << 20;

int poison_file() {
    static const int file = [] {
        const int opened = memfd_create("hipkittens_poison", MFD_CLOEXEC);
        if (opened < 0 || ftruncate(opened, poison_file_bytes) != 0) return -1;
        void* pages = mmap(nullptr, poison_file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
        if (pages == MAP_FAILED) return -1;
        std::fill_n(static_cast<uint32_t*>(pages), poison_file_bytes / 4, poison_pattern);
        munmap(pages, poison_file_bytes);
        return opened;
    }();
    return file;
}

// `first` and `first + bytes` are page-aligned.
bool show_poison(uint8_t* first, size_t bytes) {
    if (poison_file() < 0) return false;
    for (size_t done = 0; done < bytes; done += poison_file_bytes) {
        const size_t part = std::min(bytes - done, poison_file_bytes);
        if (mmap(first + done, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                 poison_file(), 0) == MAP_FAILED)
            return false;
    }
    return true;
}

}  // namespace

void* DeviceMemory::allocate(size_t bytes, size_t capacity, bool poison, const char* function,
                             hip::hipMemoryType type) {
    const size_t left = capacity - std::min(capacity, allocated_bytes());
    if (bytes > left) {
        throw HipError(hip::hipErrorOutOfMemory, std::to_string(bytes) + " bytes; " + std::to_string(left) +
                                                     " of the device's " + std::to_string(capacity) +
                                                     " are free");
    }
    const size_t usable = (bytes + granule - 1) / granule * granule;
    const size_t pages = (usable + page - 1) / page * page, total = pages + 2 * page;
    void* mapping = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
        throw HipError(hip::hipErrorOutOfMemory,
                       "the host has no " + std::to_string(bytes) + " bytes to give");
    }
    uint8_t* const first = static_cast<uint8_t*>(mapping) + page;
    if (mprotect(first, pages, PROT_READ | PROT_WRITE) != 0) {
        munmap(mapping, total);
        throw HipError(hip::hipErrorOutOfMemory,
                       "the host has no " + std::to_string(bytes) + " bytes to give");
    }
    uint8_t* const begin = first + (pages - usable);
    if (poison && (usable <= poison_file_bytes || !show_poison(first, pages)))
        std::fill_n(reinterpret_cast<uint32_t*>(begin), usable / 4, poison_pattern);
    std::lock_guard lock(mutex_);
    ++count_;
    allocated_bytes_ += bytes;
    auto name = std::make_shared<const std::string>(std::string(function) + " #" + std::to_string(count_) +
                                                    " of " + std::to_string(bytes) + " bytes");
    const uint64_t low = reinterpret_cast<uint64_t>(mapping), high = low + total;
    std::erase_if(freed_, [&](const Freed& freed) { return freed.begin < high && low < freed.end; });
    blocks_[reinterpret_cast<uintptr_t>(begin)] = {
        bytes, mapping, total, std::move(name), poison ? poison_pattern : 0, type};
    return begin;
}

void DeviceMemory::free(void* pointer) {
    std::unique_lock no_launch(launches);
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == blocks_.end() || !found->second.mapping) {
        throw HipError(hip::hipErrorInvalidValue,
                       text_of(pointer) + " did not come from hipMalloc, or was freed before");
    }
    munmap(found->second.mapping, found->second.mapping_bytes);
    const uint64_t begin = reinterpret_cast<uint64_t>(pointer);
    freed_.push_back({begin, begin + found->second.bytes, found->second.name});
    if (freed_.size() > remembered_frees) freed_.pop_front();
    allocated_bytes_ -= found->second.bytes;
    blocks_.erase(found);
}

void DeviceMemory::register_host(void* pointer, size_t bytes) {
    std::lock_guard lock(mutex_);
    const uintptr_t begin = reinterpret_cast<uintptr_t>(pointer);
    const auto* before = find(begin + bytes - 1);
    if (before && before->first + before->second.bytes > begin) {
        throw HipError(hip::hipErrorHostMemoryAlreadyRegistered,
                       text_of(pointer) + " overlaps " + *before->second.name);
    }
    ++count_;
    auto name = std::make_shared<const std::string>("hipHostRegister #" + std::to_string(count_) + " of " +
                                                    std::to_string(bytes) + " bytes");
    blocks_[begin] = {bytes, nullptr, 0, std::move(name), 0, hip::hipMemoryTypeHost};
}

void DeviceMemory::unregister_host(void* pointer) {
    std::unique_lock no_launch(launches);
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == blocks_.end() || found->second.mapping) {
        throw HipError(hip::hipErrorHostMemoryNotRegistered, text_of(pointer) + " was not registered");
    }
    blocks_.erase(found);
}

const std::pair<const uintptr_t, DeviceMemory::Block>* DeviceMemory::find(uintptr_t address) const {
    auto after = blocks_.upper_bound(address);
    return after == blocks_.begin() ? nullptr : &*std::prev(after);
}

void DeviceMemory::check_device_range(const void* pointer, size_t bytes, const char* what) {
    check_any_range(pointer, bytes, what);
    if (bytes && !holds(pointer)) {
        throw HipError(hip::hipErrorInvalidValue,
                       std::string(what) + " " + text_of(pointer) + " is no device memory");
    }
}

void DeviceMemory::check_any_range(const void* pointer, size_t bytes, const char* what) {
    std::lock_guard lock(mutex_);
    const uintptr_t begin = reinterpret_cast<uintptr_t>(pointer);
    const auto* block = bytes ? find(begin) : nullptr;
    if (!block || begin >= block->first + block->second.bytes) return;
    const size_t left = block->first + block->second.bytes - begin;
    if (bytes > left) {
        throw HipError(hip::hipErrorInvalidValue, std::string(what) + " " + text_of(pointer) + " of " +
                                                      std::to_string(bytes) + " bytes leaves " +
                                                      *block->second.name + ", which has " +
                                                      std::to_string(left) + " bytes from there");
    }
}

std::string DeviceMemory::freed_at(uint64_t address) {
    std::lock_guard lock(mutex_);
    for (auto freed = freed_.rbegin(); freed != freed_.rend(); ++freed) {
        if (freed->begin <= address && address < freed->end) return *freed->name;
    }
    return "";
}

bool DeviceMemory::holds(const void* pointer) {
    std::lock_guard lock(mutex_);
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    const auto* block = find(address);
    return block && address < block->first + block->second.bytes;
}

hip::hipMemoryType DeviceMemory::type_of(const void* pointer) {
    std::lock_guard lock(mutex_);
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    const auto* block = find(address);
    const bool is_held = block && address < block->first + block->second.bytes;
    return is_held ? block->second.type : hip::hipMemoryTypeUnregistered;
}

std::pair<void*, size_t> DeviceMemory::range_of(const void* pointer) {
    std::lock_guard lock(mutex_);
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    const auto* block = find(address);
    if (!block || address >= block->first + block->second.bytes)
        throw HipError(hip::hipErrorNotFound,
                       text_of(pointer) + " is in no allocation and no registered range");
    return {reinterpret_cast<void*>(block->first), block->second.bytes};
}

void DeviceMemory::add_mapped(void* pointer, size_t bytes) {
    std::lock_guard lock(mutex_);
    ++count_;
    auto name = std::make_shared<const std::string>("hipMemMap #" + std::to_string(count_) + " of " +
                                                    std::to_string(bytes) + " bytes");
    blocks_[reinterpret_cast<uintptr_t>(pointer)] = {bytes, nullptr, 0, std::move(name)};
}

void DeviceMemory::remove_mapped(void* pointer) {
    std::unique_lock no_launch(launches);
    std::lock_guard lock(mutex_);
    blocks_.erase(reinterpret_cast<uintptr_t>(pointer));
}

size_t DeviceMemory::allocated_bytes() {
    std::lock_guard lock(mutex_);
    return allocated_bytes_;
}

DeviceMemory::Regions DeviceMemory::regions() {
    std::lock_guard lock(mutex_);
    Regions result;
    for (const auto& [begin, block] : blocks_) {
        result.regions.push_back(
            {begin, begin + block.bytes, block.name->c_str(), true, false, block.unwritten});
        result.names.push_back(block.name);
    }
    return result;
}

// Never destroyed: threads may still be inside the library while the process exits.
DeviceMemory& device_memory() {
    static DeviceMemory& memory = *new DeviceMemory;
    return memory;
}

}  // namespace hipkittens::simulator
