// runtime/kernel_library.h: maps kernels to the code objects that hold them, and loads them on a device.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/device.h"

namespace hipkittens::runtime {

// The kernel loaded on the device: its code object is requested and loaded on the first call, then kept. Throws
// Error; also if it would have to be loaded while `stream` is being captured into a graph, which HIP does not allow.
hipFunction_t kernel_function(const Device& device, const std::string& kernel, void* stream = nullptr);

// Registers the bytes of a code object that holds `kernel` for `target` ("gfx942"). Adding the same bytes
// twice is fine; different bytes for the same kernel throw Error.
void add_code_object(const std::string& target, const std::string& kernel, std::span<const uint8_t> bytes);

// Throws Error unless the bytes are a code object for `target` that holds `kernel`.
void check_code_object(const std::string& target, const std::string& kernel, std::span<const uint8_t> bytes);

struct LoadedKernel {
    hipModule_t module = nullptr;
    hipFunction_t function = nullptr;
};
// Loads a code object, whose bytes have been checked, for its caller only. Throws Error.
LoadedKernel load_kernel(const Device& device, const std::string& kernel, std::span<const uint8_t> bytes);

}  // namespace hipkittens::runtime

// The interface for Python, which keeps the packs of code objects. Plain C, exported.
extern "C" {
// Called, without any lock held, when a kernel is needed for the first time. It adds the code object with
// hipkittens_runtime_add_code_object and returns 0; or passes a message to hipkittens_runtime_refuse and
// returns 1.
typedef int (*hipkittens_runtime_code_object_source)(const char* target, const char* kernel);
void hipkittens_runtime_set_code_object_source(hipkittens_runtime_code_object_source source);
// Returns 0, or 1 with the reason in hipkittens_runtime_last_error.
int hipkittens_runtime_add_code_object(const char* target, const char* kernel, const uint8_t* bytes,
                                       uint64_t size);
// Loads a kernel on GPU `ordinal`, or with -1 on the simulated `arch`, so that no launch has to load it.
// Returns 0, or 1 as above.
int hipkittens_runtime_load_kernel(int ordinal, const char* arch, const char* kernel);
void hipkittens_runtime_refuse(const char* reason);
const char* hipkittens_runtime_last_error(void);  // of the calling thread
}
