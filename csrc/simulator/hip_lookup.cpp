// simulator/hip_lookup.cpp: HIP's function that finds its functions by name.
// SPDX-License-Identifier: MIT
#include <dlfcn.h>

#include <cstring>

#include "simulator/hip_call.h"

namespace hipkittens::simulator {

using namespace hip;

namespace {

// The versioned symbol for an API name, where HIP changed a structure (hipDeviceProp_t in ROCm 6.0).
const char* exported_name(const char* name) {
    return std::strcmp(name, "hipGetDeviceProperties") == 0 ? "hipGetDevicePropertiesR0600" : name;
}

// This library itself, which the process may have opened under any name and scope.
void* own_handle() {
    static void* const handle = [] {
        Dl_info info{};
        return dladdr(reinterpret_cast<void*>(&own_handle), &info)
                   ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                   : nullptr;
    }();
    return handle;
}

}  // namespace

HIPKITTENS_EXPORT hipError_t hipGetProcAddress(const char* name, void** function, int version, uint64_t flags,
                                               int* status) {
    return call("hipGetProcAddress", [&] {
        require_pointer(name, "symbol");
        require_pointer(function, "pfn");
        require(flags == 0, hipErrorInvalidValue, "flags must be 0");
        require(version >= 0, hipErrorInvalidValue, "the version is negative");
        void* const handle = own_handle();
        *function = handle ? dlsym(handle, exported_name(name)) : nullptr;
        if (status) *status = *function ? 0 : 1;  // HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
        if (!*function) throw HipError(hipErrorInvalidValue, std::string("no function is called ") + name);
    });
}

}  // namespace hipkittens::simulator
