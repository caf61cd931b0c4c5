// benchmarks/idle_hip.cpp: a libamdhip64 whose calls return at once, so that what is measured is what calls it.
// SPDX-License-Identifier: MIT
#include <cstring>

#include "hip/hip_abi.h"

using namespace hipkittens::hip;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT hipError_t hipGetDeviceCount(int* count) {
    *count = 1;
    return hipSuccess;
}
EXPORT hipError_t hipGetDevice(int* device) {
    *device = 0;
    return hipSuccess;
}
EXPORT hipError_t hipGetDevicePropertiesR0600(void* properties, int) {
    std::memset(properties, 0, device_properties::bytes);
    std::strcpy(static_cast<char*>(properties) + device_properties::name, "idle");
    std::strcpy(static_cast<char*>(properties) + device_properties::gcn_arch_name, "gfx942");
    return hipSuccess;
}
EXPORT hipError_t hipDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == hipDeviceAttributeMaxSharedMemoryPerBlock ? 65536
             : attribute == hipDeviceAttributeNumberOfXccs          ? 8
                                                                    : 304;
    return hipSuccess;
}
EXPORT hipError_t hipModuleLoadData(hipModule_t* module, const void*) {
    *module = reinterpret_cast<hipModule_t>(0x1000);
    return hipSuccess;
}
EXPORT hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t, const char*) {
    *function = reinterpret_cast<hipFunction_t>(0x2000);
    return hipSuccess;
}

// What a launch does not call, or what has nothing to say.
#define IDLE(name) \
    EXPORT hipError_t name(...) { return hipSuccess; }
IDLE(hipInit)
IDLE(hipDriverGetVersion)
IDLE(hipRuntimeGetVersion)
IDLE(hipSetDevice)
IDLE(hipDeviceGetName)
IDLE(hipDeviceSynchronize)
IDLE(hipModuleUnload)
IDLE(hipFuncGetAttribute)
IDLE(hipModuleLaunchKernel)
IDLE(hipMalloc)
IDLE(hipFree)
IDLE(hipMemcpy)
IDLE(hipMemcpyAsync)
IDLE(hipMemsetAsync)
IDLE(hipStreamCreate)
IDLE(hipStreamDestroy)
IDLE(hipStreamSynchronize)
EXPORT hipError_t hipStreamIsCapturing(hipStream_t, int* status) {
    *status = hipStreamCaptureStatusNone;
    return hipSuccess;
}
IDLE(hipEventCreate)
IDLE(hipEventDestroy)
IDLE(hipEventRecord)
IDLE(hipEventSynchronize)
IDLE(hipEventElapsedTime)
IDLE(hipGetLastError)
EXPORT const char* hipGetErrorName(hipError_t error) { return error_name(error); }
EXPORT const char* hipGetErrorString(hipError_t error) { return error_text(error); }
