// tests/runtime/fake_amdhip64.cpp: a libamdhip64 that does nothing but write down what it was asked to do.
// SPDX-License-Identifier: MIT
//
// FAKE_HIP_LOG      file that gets a line per call: name and arguments
// FAKE_HIP_DEVICES  number of devices (default 1; 0 answers hipErrorNoDevice)
// FAKE_HIP_ARCH     architecture of device i is entry i of this comma-separated list (default gfx942 for all)
// FAKE_HIP_UNITS    compute units of every device (default 304)
// FAKE_HIP_XCDS     XCDs of every device (default: the attribute is unknown, as to ROCm 6)
// FAKE_HIP_CAPTURES  set: every stream is recorded into a graph, and modules cannot be loaded
// FAKE_HIP_FAIL     name of a function that fails with hipErrorUnknown
// Compiled with -DFAKE_HIP_OLD it lacks hipGetDevicePropertiesR0600, as ROCm 5 does.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "hip/hip_abi.h"

using namespace hipkittens::hip;

static std::mutex mutex;
static thread_local int current_device = 0;

static std::string environment(const char* name, const char* otherwise) {
    const char* value = std::getenv(name);
    return value ? value : otherwise;
}

static int device_count() { return std::atoi(environment("FAKE_HIP_DEVICES", "1").c_str()); }

template <class... Arguments>
static hipError_t record(const char* name, const char* format, Arguments... arguments) {
    std::lock_guard lock(mutex);
    if (const std::string path = environment("FAKE_HIP_LOG", ""); !path.empty()) {
        FILE* log = std::fopen(path.c_str(), "a");
        std::fprintf(log, "%s", name);
        std::fprintf(log, format, arguments...);
        std::fprintf(log, "\n");
        std::fclose(log);
    }
    return environment("FAKE_HIP_FAIL", "") == name ? hipErrorUnknown : hipSuccess;
}

#define EXPORT extern "C" __attribute__((visibility("default")))
#define UNUSED(name, parameters)                            \
    EXPORT hipError_t name parameters {                     \
        record(#name, "%s", " was not expected by a test"); \
        return hipErrorNotSupported;                        \
    }

EXPORT hipError_t hipInit(unsigned int flags) { return record("hipInit", " %u", flags); }
EXPORT hipError_t hipGetDeviceCount(int* count) {
    *count = device_count();
    const hipError_t error = record("hipGetDeviceCount", "%s", "");
    return *count ? error : hipErrorNoDevice;
}
EXPORT hipError_t hipGetDevice(int* device) {
    *device = current_device;
    return record("hipGetDevice", "%s", "");
}
EXPORT hipError_t hipSetDevice(int device) {
    current_device = device;
    return record("hipSetDevice", " %d", device);
}
#ifndef FAKE_HIP_OLD
EXPORT hipError_t hipGetDevicePropertiesR0600(void* properties, int device) {
    std::string archs = environment("FAKE_HIP_ARCH", "gfx942");
    for (int i = 0; i < device && archs.find(',') != std::string::npos; ++i)
        archs.erase(0, archs.find(',') + 1);
    const std::string arch = archs.substr(0, archs.find(',')) + ":sramecc+:xnack-";
    std::memset(properties, 0x5a, device_properties::bytes);
    std::strcpy(static_cast<char*>(properties) + device_properties::name, "Fake Instinct");
    std::strcpy(static_cast<char*>(properties) + device_properties::gcn_arch_name, arch.c_str());
    return record("hipGetDevicePropertiesR0600", " %d", device);
}
#endif
EXPORT hipError_t hipDeviceGetAttribute(int* value, int attribute, int device) {
    const std::string xcds = environment("FAKE_HIP_XCDS", "");
    *value = attribute == hipDeviceAttributeMultiprocessorCount
                 ? std::atoi(environment("FAKE_HIP_UNITS", "304").c_str())
             : attribute == hipDeviceAttributeMaxSharedMemoryPerBlock ? 65536
             : attribute == hipDeviceAttributeNumberOfXccs            ? std::atoi(xcds.c_str())
                                                                      : -1;
    const bool is_unknown = attribute == hipDeviceAttributeNumberOfXccs && xcds.empty();
    const hipError_t error = record("hipDeviceGetAttribute", " %d %d", attribute, device);
    return is_unknown ? hipErrorInvalidValue : error;
}
static bool is_capturing() { return std::getenv("FAKE_HIP_CAPTURES") != nullptr; }

EXPORT hipError_t hipStreamIsCapturing(hipStream_t stream, int* status) {
    *status = is_capturing() ? hipStreamCaptureStatusActive : hipStreamCaptureStatusNone;
    const hipError_t error = record("hipStreamIsCapturing", " %p", static_cast<void*>(stream));
    return is_capturing() && !stream ? hipErrorStreamCaptureImplicit : error;
}
EXPORT hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
    if (is_capturing()) return hipErrorStreamCaptureUnsupported;
    *module = reinterpret_cast<hipModule_t>(0x1000);
    return record("hipModuleLoadData", " %02x%.3s device %d", *static_cast<const unsigned char*>(image),
                  static_cast<const char*>(image) + 1, current_device);
}
EXPORT hipError_t hipModuleUnload(hipModule_t module) {
    return record("hipModuleUnload", " %p", static_cast<void*>(module));
}
EXPORT hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name) {
    const bool is_silent = std::getenv("FAKE_HIP_NO_FUNCTION") != nullptr;
    *function = is_silent ? nullptr : reinterpret_cast<hipFunction_t>(0x2000);
    return record("hipModuleGetFunction", " %p %s", static_cast<void*>(module), name);
}
EXPORT hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned int grid_x, unsigned int grid_y,
                                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                        unsigned int block_z, unsigned int shared_bytes, hipStream_t stream,
                                        void** arguments, void** extra) {
    std::string bytes = arguments ? "unexpected kernelParams" : "";
    if (extra[0] == reinterpret_cast<void*>(1) && extra[2] == reinterpret_cast<void*>(2) &&
        extra[4] == reinterpret_cast<void*>(3)) {
        for (size_t i = 0; i < *static_cast<size_t*>(extra[3]); ++i) {
            char digits[3];
            std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char*>(extra[1])[i]);
            bytes += digits;
        }
    }
    return record("hipModuleLaunchKernel",
                  " %p grid %u %u %u block %u %u %u shared %u stream %p arguments %s device %d",
                  static_cast<void*>(function), grid_x, grid_y, grid_z, block_x, block_y, block_z,
                  shared_bytes, static_cast<void*>(stream), bytes.c_str(), current_device);
}
EXPORT hipError_t hipDriverGetVersion(int* version) {
    *version = 60342134;
    return record("hipDriverGetVersion", "%s", "");
}
EXPORT hipError_t hipRuntimeGetVersion(int* version) {
    *version = 60342134;
    return record("hipRuntimeGetVersion", "%s", "");
}
EXPORT const char* hipGetErrorName(hipError_t error) { return error_name(error); }
EXPORT const char* hipGetErrorString(hipError_t error) { return error_text(error); }
EXPORT hipError_t hipGetLastError() { return record("hipGetLastError", "%s", ""); }

UNUSED(hipDeviceGetName, (char*, int, int))
UNUSED(hipDeviceSynchronize, ())
UNUSED(hipFuncGetAttribute, (int*, int, hipFunction_t))
UNUSED(hipMalloc, (void**, size_t))
UNUSED(hipFree, (void*))
UNUSED(hipMemcpy, (void*, const void*, size_t, int))
UNUSED(hipMemcpyAsync, (void*, const void*, size_t, int, hipStream_t))
UNUSED(hipMemsetAsync, (void*, int, size_t, hipStream_t))
UNUSED(hipStreamCreate, (hipStream_t*))
UNUSED(hipStreamDestroy, (hipStream_t))
UNUSED(hipStreamSynchronize, (hipStream_t))
UNUSED(hipEventCreate, (hipEvent_t*))
UNUSED(hipEventDestroy, (hipEvent_t))
UNUSED(hipEventRecord, (hipEvent_t, hipStream_t))
UNUSED(hipEventSynchronize, (hipEvent_t))
UNUSED(hipEventElapsedTime, (float*, hipEvent_t, hipEvent_t))
