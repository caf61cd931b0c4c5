// runtime/kernel_library.cpp: code objects by kernel name, and the functions loaded from them.
// SPDX-License-Identifier: MIT
#include "runtime/kernel_library.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <tuple>
#include <vector>

#include "code_object/code_object.h"

namespace hipkittens::runtime {
namespace {

using Bytes = std::shared_ptr<const std::vector<uint8_t>>;

// A map from (device, kernel) to its function, read on every launch and written once per kernel.
struct Library {
    std::mutex objects_mutex;
    std::map<std::pair<std::string, std::string>, Bytes> objects;  // (target, kernel)
    std::shared_mutex functions_mutex;
    std::map<std::pair<const Device*, std::string>, hipFunction_t> functions;
    std::mutex loading;
    std::atomic<hipkittens_runtime_code_object_source> source{nullptr};
};

// Never destroyed: modules belong to a HIP runtime that may already be unloaded when static destructors run.
Library& library() {
    static Library& all = *new Library;
    return all;
}

// A forked child has only the thread that forked: it must find the maps intact and every lock free. `loading`
// guards no map, and is held too long to wait for.
void before_fork() {
    library().objects_mutex.lock();
    library().functions_mutex.lock();
}
void after_fork() {
    library().functions_mutex.unlock();
    library().objects_mutex.unlock();
}
// The child's thread has a different id from the writer that a shared mutex remembers, so it cannot unlock the mutex.
void after_fork_in_child() {
    new (&library().loading) std::mutex;
    new (&library().functions_mutex) std::shared_mutex;
    library().objects_mutex.unlock();
}
[[maybe_unused]] const int handlers = pthread_atfork(before_fork, after_fork, after_fork_in_child);

std::string& thread_text() {
    thread_local std::string text;
    return text;
}

Bytes find_object(const std::string& target, const std::string& kernel) {
    std::lock_guard lock(library().objects_mutex);
    const auto found = library().objects.find({target, kernel});
    return found == library().objects.end() ? nullptr : found->second;
}

// Calls the source without holding a lock: it acquires Python's interpreter lock, whose holder may be waiting
// for ours.
Bytes object_for(const std::string& target, const std::string& kernel) {
    if (Bytes bytes = find_object(target, kernel)) return bytes;
    const std::string which = "kernel " + kernel + " for " + target;
    const auto source = library().source.load();
    if (!source)
        throw Error("there is no code object for " + which +
                    ": nothing provides any (import hipkittens first)");
    thread_text().clear();
    if (source(target.c_str(), kernel.c_str()) != 0) {
        throw Error("there is no code object for " + which + ": " +
                    (thread_text().empty() ? "the source gave no reason" : thread_text()));
    }
    if (Bytes bytes = find_object(target, kernel)) return bytes;
    throw Error("there is no code object for " + which + ": the source said it added one but did not");
}

}  // namespace

LoadedKernel load_kernel(const Device& device, const std::string& kernel, std::span<const uint8_t> bytes) {
    const HipFunctions& functions = device.library->functions;
    const std::string doing = "loading kernel " + kernel + " on " + device.name + " (" + device.arch + ")";
    const CurrentDevice current(device);
    LoadedKernel loaded;
    device.library->check(functions.hipModuleLoadData(&loaded.module, bytes.data()), doing);
    const hipError_t error = functions.hipModuleGetFunction(&loaded.function, loaded.module, kernel.c_str());
    if (error != hip::hipSuccess) {
        functions.hipModuleUnload(loaded.module);
        device.library->check(error, doing);
    }
    // Some HIP versions return success and no function for a kernel they reject.
    if (!loaded.function)
        throw Error(doing + " failed: " + device.library->path() + " returned success but no function");
    return loaded;
}

// A query of the legacy stream fails while another stream is captured.
static bool is_captured(const Device& device, void* stream) {
    int status = hip::hipStreamCaptureStatusNone;
    const HipFunctions& functions = device.library->functions;
    const hipError_t error = functions.hipStreamIsCapturing(static_cast<hipStream_t>(stream), &status);
    if (error != hip::hipSuccess) functions.hipGetLastError();  // clear the error for the next caller
    return error == hip::hipErrorStreamCaptureImplicit || status != hip::hipStreamCaptureStatusNone;
}

hipFunction_t kernel_function(const Device& device, const std::string& kernel, void* stream) {
    Library& all = library();
    const std::pair<const Device*, std::string> key{&device, kernel};
    {
        std::shared_lock lock(all.functions_mutex);
        const auto found = all.functions.find(key);
        if (found != all.functions.end()) return found->second;
    }
    const CurrentDevice current(device);  // the device whose streams are queried
    if (is_captured(device, stream)) {
        throw Error("kernel " + kernel + " is not loaded on " + device.name + " (" + device.arch +
                    ") yet, and a stream that is captured into a graph cannot wait for that: run the call "
                    "once before the "
                    "capture, or hipkittens.load()");
    }
    const Bytes bytes = object_for(device.arch, kernel);
    std::lock_guard loading(all.loading);  // a kernel is loaded once, by whichever thread comes first
    {
        std::shared_lock lock(all.functions_mutex);
        const auto found = all.functions.find(key);
        if (found != all.functions.end()) return found->second;
    }
    const hipFunction_t function = load_kernel(device, kernel, *bytes).function;
    std::unique_lock lock(all.functions_mutex);
    all.functions[key] = function;
    return function;
}

static std::string describe(const std::string& target, const std::string& kernel) {
    return "the code object for kernel " + kernel + " for " + target;
}

void check_code_object(const std::string& target, const std::string& kernel, std::span<const uint8_t> bytes) {
    const std::string which = describe(target, kernel);
    try {
        const code_object::CodeObject object = code_object::parse(bytes);
        if (target != code_object::target_name(object.target)) {
            throw Error(which + " is for " + code_object::target_name(object.target));
        }
        if (!object.find_kernel(kernel)) throw Error(which + " does not hold that kernel");
    } catch (const code_object::Error& error) {
        throw Error(which + " is damaged: " + error.what());
    }
}

void add_code_object(const std::string& target, const std::string& kernel, std::span<const uint8_t> bytes) {
    check_code_object(target, kernel, bytes);
    Library& all = library();
    std::lock_guard lock(all.objects_mutex);
    Bytes& slot = all.objects[{target, kernel}];
    if (slot && !std::equal(slot->begin(), slot->end(), bytes.begin(), bytes.end())) {
        throw Error(describe(target, kernel) + " was added before with other contents");
    }
    if (!slot) slot = std::make_shared<const std::vector<uint8_t>>(bytes.begin(), bytes.end());
}

}  // namespace hipkittens::runtime

using namespace hipkittens::runtime;

#define EXPORT __attribute__((visibility("default")))

EXPORT void hipkittens_runtime_set_code_object_source(hipkittens_runtime_code_object_source source) {
    library().source.store(source);
}

EXPORT int hipkittens_runtime_add_code_object(const char* target, const char* kernel, const uint8_t* bytes,
                                              uint64_t size) {
    try {
        if (!target || !kernel || (!bytes && size)) throw Error("a null pointer was passed");
        add_code_object(target, kernel, {bytes, size});
        return 0;
    } catch (const std::exception& error) {
        thread_text() = error.what();
        return 1;
    }
}

EXPORT int hipkittens_runtime_load_kernel(int ordinal, const char* arch, const char* kernel) {
    try {
        if (!kernel || (ordinal < 0 && !arch)) throw Error("a null pointer was passed");
        kernel_function(ordinal < 0 ? simulated_device(arch) : hip_device(ordinal), kernel);
        return 0;
    } catch (const std::exception& error) {
        thread_text() = error.what();
        return 1;
    }
}

EXPORT void hipkittens_runtime_refuse(const char* reason) { thread_text() = reason ? reason : ""; }

EXPORT const char* hipkittens_runtime_last_error(void) { return thread_text().c_str(); }
