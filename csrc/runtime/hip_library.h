// runtime/hip_library.h: a shared library with the HIP driver API, opened when it is first needed.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hip/hip_abi.h"
#include "runtime/error.h"

namespace hipkittens::runtime {

using hip::hipError_t, hip::hipEvent_t, hip::hipFunction_t, hip::hipModule_t, hip::hipStream_t;

struct HipFunctions {
#define HIP_FUNCTION(result, name, parameters) result(*name) parameters = nullptr;
#include "hip/hip_functions.def"
#undef HIP_FUNCTION
};

// Only the simulator provides these (simulator/simulator.h); null otherwise.
struct BoundedRegion {
    const void* begin;
    uint64_t bytes;
    const char* name;
    int writable;
    uint32_t unwritten;
};
struct SimulatorFunctions {
    int (*launch_bounded)(void* function, const unsigned int grid[3], const unsigned int block[3],
                          unsigned int shared_bytes, void* stream, const void* arguments,
                          size_t argument_bytes, const BoundedRegion* regions, size_t region_count) = nullptr;
    const char* (*last_error)() = nullptr;
};

class HipLibrary {
  public:
    // Opens the library at `path` and looks up every function. Throws Error.
    explicit HipLibrary(const std::string& path);
    HipLibrary(const HipLibrary&) = delete;

    const std::string& path() const { return path_; }
    bool is_simulator() const { return simulator_functions.launch_bounded != nullptr; }

    // Throws Error with `doing`, the error's name and text, and the simulator's report if there is one.
    void check(hipError_t error, const std::string& doing) const;

    HipFunctions functions;
    SimulatorFunctions simulator_functions;

  private:
    std::string path_;
};

// The system's HIP, searched for once.
struct SystemHip {
    HipLibrary* library = nullptr;  // null if there is none or it is unusable
    std::string found_by;           // the search location it came from
    int device_count = 0;
    std::string message;  // why there is no device, naming the library or the places searched; else empty
};
const SystemHip& system_hip();

// The simulator installed next to this library. Throws Error if it is missing.
HipLibrary& simulator();

// Existing files in the order system_hip() tries them, each once. For messages and `hipkittens info`.
std::vector<std::string> system_hip_candidates();

}  // namespace hipkittens::runtime
