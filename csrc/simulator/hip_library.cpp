// simulator/hip_library.cpp: HIP's functions for the library itself and for devices.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>
#include <mutex>

#include "simulator/hip_objects.h"
#include "simulator/visible_devices.h"

namespace hipkittens::simulator {

using namespace hip;

ThreadState& thread_state() {
    thread_local ThreadState state;
    return state;
}

// Never destroyed: threads may still be inside the library while the process exits.
Objects& objects() {
    static Objects& all = *new Objects;
    return all;
}

int checked_device(int device) {
    if (device < 0 || device >= visible_device_count()) {
        throw HipError(hipErrorInvalidDevice, "device " + std::to_string(device) +
                                                  " does not exist; there are " +
                                                  std::to_string(visible_device_count()));
    }
    return device;
}

HIPKITTENS_EXPORT hipError_t hipInit(unsigned int flags) {
    return call("hipInit", [&] { require(flags == 0, hipErrorInvalidValue, "flags must be 0"); });
}

// major * 10000000 + minor * 100000 + patch, of the HIP version whose ABI is implemented.
static void version(int* version) {
    require_pointer(version, "version");
    *version = 70000000;
}
HIPKITTENS_EXPORT hipError_t hipDriverGetVersion(int* value) {
    return call("hipDriverGetVersion", [&] { version(value); });
}
HIPKITTENS_EXPORT hipError_t hipRuntimeGetVersion(int* value) {
    return call("hipRuntimeGetVersion", [&] { version(value); });
}

HIPKITTENS_EXPORT hipError_t hipGetDeviceCount(int* count) {
    return call("hipGetDeviceCount", [&] {
        require_pointer(count, "count");
        *count = visible_device_count();
        require(*count > 0, hipErrorNoDevice, "HIP_VISIBLE_DEVICES names none of the simulated devices");
    });
}
HIPKITTENS_EXPORT hipError_t hipGetDevice(int* device) {
    return call("hipGetDevice", [&] {
        require_pointer(device, "device");
        *device = thread_state().device;
    });
}
HIPKITTENS_EXPORT hipError_t hipSetDevice(int device) {
    return call("hipSetDevice", [&] { thread_state().device = checked_device(device); });
}
HIPKITTENS_EXPORT hipError_t hipDeviceGet(int* handle, int ordinal) {
    return call("hipDeviceGet", [&] {
        require_pointer(handle, "handle");
        *handle = checked_device(ordinal);
    });
}
HIPKITTENS_EXPORT hipError_t hipDeviceGetName(char* name, int length, int device) {
    return call("hipDeviceGetName", [&] {
        require_pointer(name, "name");
        require(length > 0, hipErrorInvalidValue, "length must be above 0");
        const char* text = visible_device(checked_device(device)).name;
        const size_t bytes = std::min(std::strlen(text), static_cast<size_t>(length) - 1);
        std::memcpy(name, text, bytes);
        name[bytes] = 0;
    });
}
HIPKITTENS_EXPORT hipError_t hipDeviceTotalMem(size_t* bytes, int device) {
    return call("hipDeviceTotalMem", [&] {
        require_pointer(bytes, "bytes");
        *bytes = visible_device(checked_device(device)).memory_bytes;
    });
}
HIPKITTENS_EXPORT hipError_t hipDeviceSynchronize() { return hipSuccess; }

HIPKITTENS_EXPORT const char* hipGetErrorName(hipError_t error) { return error_name(error); }
HIPKITTENS_EXPORT const char* hipGetErrorString(hipError_t error) { return error_text(error); }
HIPKITTENS_EXPORT hipError_t hipDrvGetErrorName(hipError_t error, const char** name) {
    return call("hipDrvGetErrorName", [&] {
        require_pointer(name, "errorString");
        *name = error_name(error);
    });
}
HIPKITTENS_EXPORT hipError_t hipDrvGetErrorString(hipError_t error, const char** text) {
    return call("hipDrvGetErrorString", [&] {
        require_pointer(text, "errorString");
        *text = error_text(error);
    });
}
HIPKITTENS_EXPORT hipError_t hipGetLastError() {
    const hipError_t last = thread_state().last_error;
    thread_state().last_error = hipSuccess;
    return last;
}
HIPKITTENS_EXPORT hipError_t hipPeekAtLastError() { return thread_state().last_error; }
HIPKITTENS_EXPORT hipError_t hipExtGetLastError() { return hipGetLastError(); }

}  // namespace hipkittens::simulator
