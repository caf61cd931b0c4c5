// simulator/hip_objects.h: the things behind HIP's handles.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "simulator/hip_call.h"
#include "simulator/machine/loaded_code.h"

namespace hipkittens::simulator {

// Handles are numbers that are never used twice, so that a stale one is recognised instead of followed.
template <class T, class Handle>
class HandleTable {
  public:
    explicit HandleTable(const char* name, uintptr_t tag) : name_(name), next_(tag << 48) {}

    Handle add(std::shared_ptr<T> object) {
        std::lock_guard lock(mutex_);
        next_ += 16;
        objects_[next_] = std::move(object);
        return reinterpret_cast<Handle>(next_);
    }
    std::shared_ptr<T> get(Handle handle) {
        std::lock_guard lock(mutex_);
        const auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
        if (found == objects_.end()) refuse();
        return found->second;
    }
    void remove(Handle handle) {
        std::lock_guard lock(mutex_);
        if (!objects_.erase(reinterpret_cast<uintptr_t>(handle))) refuse();
    }

    // For fork_handlers.cpp: lock() holds the table and the objects' own mutexes.
    void lock() {
        mutex_.lock();
        for (const auto& [handle, object] : objects_) object->lock();
    }
    void unlock() {
        for (const auto& [handle, object] : objects_) object->unlock();
        mutex_.unlock();
    }
    template <class Visit>
    void for_each(Visit visit) {
        for (const auto& [handle, object] : objects_) visit(*object);
    }

  private:
    [[noreturn]] void refuse() const {
        throw HipError(hip::hipErrorInvalidHandle,
                       std::string("the ") + name_ + " handle is unknown or was destroyed");
    }
    const char* name_;
    std::mutex mutex_;
    uintptr_t next_;
    std::map<uintptr_t, std::shared_ptr<T>> objects_;
};

struct Module {
    explicit Module(std::span<const uint8_t> file) : code(file) {}
    int device = 0;
    LoadedCode code;
    std::mutex mutex;
    std::map<std::string, hip::hipFunction_t> functions;  // handles given out
    void lock() { mutex.lock(); }
    void unlock() { mutex.unlock(); }
};

struct Function {
    std::shared_ptr<Module> module;
    const code_object::Kernel* kernel = nullptr;
    int max_dynamic_lds_bytes = 0;
    void lock() {}
    void unlock() {}
};

struct Stream {
    int device = 0;
    void lock() {}
    void unlock() {}
};

struct Event {
    std::mutex mutex;
    bool is_recorded = false;
    std::chrono::steady_clock::time_point time;
    void lock() { mutex.lock(); }
    void unlock() { mutex.unlock(); }
};

struct Objects {
    HandleTable<Module, hip::hipModule_t> modules{"module", 0x1001};
    HandleTable<Function, hip::hipFunction_t> functions{"function", 0x1002};
    HandleTable<Stream, hip::hipStream_t> streams{"stream", 0x1003};
    HandleTable<Event, hip::hipEvent_t> events{"event", 0x1004};
};
Objects& objects();
std::atomic<int>& launches_under_way();  // of all threads
std::mutex& process_settings_mutex();    // for fork_handlers.cpp

// The default streams exist without being created. Everything runs when it is called, so a stream only has to
// be real, and to belong to the device that works on it.
void check_stream(hip::hipStream_t stream);
void check_stream(hip::hipStream_t stream, int device);
int checked_device(int device);

}  // namespace hipkittens::simulator
