// runtime/hip_library.cpp: opens HIP libraries and finds their functions.
// SPDX-License-Identifier: MIT
#include "runtime/hip_library.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>

#include "runtime/hip_search.h"

namespace hipkittens::runtime {
namespace {

// Names for the dynamic linker's own search (ldconfig), newest ABI first, and the folder of a system-wide
// ROCm installation.
constexpr const char* linker_names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"};
constexpr const char* rocm_files[] = {"/opt/rocm/lib/libamdhip64.so", "/opt/rocm/lib/libamdhip64.so.7",
                                      "/opt/rocm/lib/libamdhip64.so.6"};

std::string path_of(void* handle, const std::string& otherwise) {
    link_map* map = nullptr;
    return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name ? map->l_name
                                                                                            : otherwise;
}

bool is_file(const char* path) {
    std::error_code error;
    return std::filesystem::is_regular_file(path, error);
}

struct Found {
    std::string path;  // "" if there is none
    std::string found_by;
};

// The library to use. Two HIP runtimes in one process do not recognize each other's handles, so one that is
// already mapped takes precedence over every other.
Found find_system_hip() {
    if (const std::string path = override_path(); !path.empty()) return {path, "HIPKITTENS_LIBHIP_PATH"};
    if (const auto mapped = mapped_libraries("libamdhip64.so"); !mapped.empty())
        return {mapped.front(), "loaded in this process already"};
    if (const auto files = hip_files(); !files.empty()) return {files.front(), "the folders searched"};
    for (const char* name : linker_names) {
        if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL))
            return {path_of(handle, name), "the dynamic linker's search"};
    }
    for (const char* path : rocm_files) {
        if (is_file(path)) return {path, "the folder of a system-wide ROCm"};
    }
    return {};
}

SystemHip open_system_hip() {
    SystemHip result;
    try {
        const auto [path, found_by] = find_system_hip();
        result.found_by = found_by;
        if (path.empty()) {
            result.message =
                "no HIP library (libamdhip64.so) was found: none is loaded, none lies in torch/lib, "
                "_rocm_sdk_core/lib, HIP_PATH, ROCM_PATH, LD_LIBRARY_PATH, the linker's cache or "
                "/opt/rocm/lib; HIPKITTENS_LIBHIP_PATH can name one";
            return result;
        }
        // Never closed: a HIP runtime does not survive being unloaded.
        result.library = new HipLibrary(path);
        int count = 0;
        const hipError_t error = result.library->functions.hipGetDeviceCount(&count);
        if (error != hip::hipSuccess || count <= 0) {
            result.message =
                "the HIP library " + result.library->path() + " was found, but it has no device (" +
                (error == hip::hipSuccess ? "hipGetDeviceCount says 0"
                                          : std::string(result.library->functions.hipGetErrorName(error))) +
                "); is the amdgpu driver loaded, and may this user open /dev/kfd?";
            return result;
        }
        result.device_count = count;
    } catch (const Error& error) {
        result.message = error.what();
    }
    return result;
}

}  // namespace

HipLibrary::HipLibrary(const std::string& path) : path_(path) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char* reason = dlerror();
        throw Error("cannot open the HIP library " + path + ": " + (reason ? reason : "unknown reason"));
    }
    path_ = path_of(handle, path);
    std::string missing;
    const auto find = [&](auto& function, const char* name) {
        void* const address = dlsym(handle, name);
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
        if (!address) missing += (missing.empty() ? "" : ", ") + std::string(name);
    };
#define HIP_FUNCTION(result, name, parameters) find(functions.name, #name);
#include "hip/hip_functions.def"
#undef HIP_FUNCTION
    if (!missing.empty()) {
        throw Error("the HIP library " + path_ + " has no " + missing +
                    "; hipkittens needs ROCm 6.0 or later");
    }
    simulator_functions.launch_bounded = reinterpret_cast<decltype(simulator_functions.launch_bounded)>(
        dlsym(handle, "hipkittens_launch_bounded"));
    simulator_functions.last_error =
        reinterpret_cast<decltype(simulator_functions.last_error)>(dlsym(handle, "hipkittens_last_error"));
}

void HipLibrary::check(hipError_t error, const std::string& doing) const {
    if (error == hip::hipSuccess) return;
    std::string text = doing + " failed: ";
    const char* name = functions.hipGetErrorName(error);
    const char* meaning = functions.hipGetErrorString(error);
    text += std::string(name ? name : "?") + " (" + std::to_string(static_cast<int>(error)) + ", " +
            (meaning ? meaning : "?") + ")";
    functions.hipGetLastError();  // already reported: clear it for the next caller
    if (is_simulator() && simulator_functions.last_error) {
        text += "\n" + std::string(simulator_functions.last_error());
    } else {
        text += ", from " + path_;
    }
    throw Error(text);
}

const SystemHip& system_hip() {
    static const SystemHip& result = *new SystemHip(open_system_hip());
    return result;
}

HipLibrary& simulator() {
    static std::mutex mutex;
    // Never closed: worker threads may still run at exit. Every launch reads it, and a forked child must not
    // find a lock held by a thread that it does not have.
    static std::atomic<HipLibrary*> open{nullptr};
    if (HipLibrary* library = open.load()) return *library;
    std::lock_guard lock(mutex);
    if (!open.load()) {
        const std::string path = simulator_path();
        if (path.empty()) {
            throw Error(
                "libhipkittens_simulator.so is not beside hipkittens' own libraries; install hipkittens "
                "again");
        }
        auto library = std::make_unique<HipLibrary>(path);
        if (!library->is_simulator())
            throw Error(path + " is no hipkittens simulator; install hipkittens again");
        open = library.release();
    }
    return *open.load();
}

std::vector<std::string> system_hip_candidates() {
    std::vector<std::string> all = mapped_libraries("libamdhip64.so");
    const std::vector<std::string> files = hip_files();
    all.insert(all.end(), files.begin(), files.end());
    for (const char* path : rocm_files) {
        if (is_file(path)) all.emplace_back(path);
    }
    return all;
}

}  // namespace hipkittens::runtime
