// simulator/hip_objects.h: the objects that HIP's handles refer to.
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

#include "simulator/graph.h"
#include "simulator/hip_call.h"
#include "simulator/machine/loaded_code.h"

namespace hipkittens::simulator {

// Handles are numbers that are never reused, so that a stale one is recognized instead of dereferenced.
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

    template <class Visit>
    void visit(Visit visit) {
        std::lock_guard lock(mutex_);
        for_each(visit);
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
    std::map<std::string, hip::hipFunction_t> functions;  // handles returned to the program
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
    int device = 0, priority = 0;
    unsigned int flags = 0;
    std::mutex mutex;
    std::shared_ptr<Capture> capture;               // null: work runs when it is queued
    std::vector<std::shared_ptr<GraphNode>> last;   // what the next captured work depends on
    std::vector<hip::hipGraphNode_t> last_handles;  // of `last`, as returned to the program
    void lock() { mutex.lock(); }
    void unlock() { mutex.unlock(); }
};

struct Event {
    std::mutex mutex;
    bool is_recorded = false;
    std::chrono::steady_clock::time_point time;
    std::shared_ptr<Capture> capture;  // the capture of the stream it was recorded on
    std::vector<std::shared_ptr<GraphNode>> captured_after;
    void lock() { mutex.lock(); }
    void unlock() { mutex.unlock(); }
};

struct Objects {
    HandleTable<Module, hip::hipModule_t> modules{"module", 0x1001};
    HandleTable<Function, hip::hipFunction_t> functions{"function", 0x1002};
    HandleTable<Stream, hip::hipStream_t> streams{"stream", 0x1003};
    HandleTable<Event, hip::hipEvent_t> events{"event", 0x1004};
    HandleTable<Graph, hip::hipGraph_t> graphs{"graph", 0x1005};
    HandleTable<GraphNode, hip::hipGraphNode_t> nodes{"graph node", 0x1006};
    HandleTable<GraphExecutable, hip::hipGraphExec_t> executables{"executable graph", 0x1007};
};
Objects& objects();
std::atomic<int>& launches_under_way();  // of all threads
std::mutex& process_settings_mutex();    // for fork_handlers.cpp

// The default streams exist without being created. Everything runs synchronously, so a stream only has to be
// valid, and to belong to the device that works on it.
void check_stream(hip::hipStream_t stream);
void check_stream(hip::hipStream_t stream, int device);
bool is_default_stream(hip::hipStream_t stream);
int checked_device(int device);

// A kernel with its arguments, checked and ready to start on its device.
Work prepared_launch(hip::hipFunction_t function, const hip::dim3& grid, const hip::dim3& block,
                     unsigned int shared_bytes, hip::hipStream_t stream, void** arguments, void** extra,
                     bool cooperative = false);
// Resolves a handle, or the host function of a kernel that the program has registered.
hip::hipFunction_t function_of(const void* function);
// Loads the code object for the thread's device from the image, a code object or a bundle of them. The length
// is read from the image.
hip::hipModule_t load_module(const void* image);
hip::hipFunction_t kernel_of(hip::hipModule_t module, const char* name);
// The number of workgroups that share a compute unit.
int resident_workgroups(const Function& function, int block_size, size_t dynamic_lds_bytes);

}  // namespace hipkittens::simulator
