// simulator/hip_context.cpp: HIP's functions for contexts, peers and what else a program asks of a device.
// SPDX-License-Identifier: MIT
//
// As in HIP, each device has only one context: its handle is the device's number.
#include <cstdio>
#include <cstring>

#include "simulator/hip_objects.h"
#include "simulator/visible_devices.h"

namespace hipkittens::simulator {

using namespace hip;

namespace {

using Contexts = DeviceHandles<hipCtx_t, 0x1008>;

int device_of(hipCtx_t context) {
    const int device = Contexts::device_of(context);
    require(device >= 0, hipErrorInvalidContext, "the context is none of a device");
    return device;
}

std::vector<int>& contexts_below() {
    thread_local std::vector<int> below;
    return below;
}

std::string bus_id(int device) {
    char text[32];
    std::snprintf(text, sizeof text, "0000:%02x:00.0", device + 1);
    return text;
}

}  // namespace

HIPKITTENS_EXPORT hipError_t hipCtxCreate(hipCtx_t* context, unsigned int, int device) {
    return call("hipCtxCreate", [&] {
        require_pointer(context, "ctx");
        contexts_below().push_back(thread_state().device);
        thread_state().device = checked_device(device);
        *context = Contexts::handle_of(device);
    });
}
HIPKITTENS_EXPORT hipError_t hipCtxDestroy(hipCtx_t context) {
    return call("hipCtxDestroy", [&] { device_of(context); });
}
HIPKITTENS_EXPORT hipError_t hipCtxGetCurrent(hipCtx_t* context) {
    return call("hipCtxGetCurrent", [&] {
        require_pointer(context, "ctx");
        *context = Contexts::handle_of(checked_device(thread_state().device));
    });
}
HIPKITTENS_EXPORT hipError_t hipCtxSetCurrent(hipCtx_t context) {
    return call("hipCtxSetCurrent", [&] {
        if (context) thread_state().device = device_of(context);
    });
}
HIPKITTENS_EXPORT hipError_t hipCtxPushCurrent(hipCtx_t context) {
    return call("hipCtxPushCurrent", [&] {
        const int device = device_of(context);
        contexts_below().push_back(thread_state().device);
        thread_state().device = device;
    });
}
HIPKITTENS_EXPORT hipError_t hipCtxPopCurrent(hipCtx_t* context) {
    return call("hipCtxPopCurrent", [&] {
        require(!contexts_below().empty(), hipErrorInvalidContext, "no context was pushed");
        if (context) *context = Contexts::handle_of(thread_state().device);
        thread_state().device = contexts_below().back();
        contexts_below().pop_back();
    });
}
HIPKITTENS_EXPORT hipError_t hipCtxGetDevice(int* device) {
    return call("hipCtxGetDevice", [&] {
        require_pointer(device, "device");
        *device = checked_device(thread_state().device);
    });
}
HIPKITTENS_EXPORT hipError_t hipCtxSynchronize() { return hipSuccess; }
HIPKITTENS_EXPORT hipError_t hipDevicePrimaryCtxRetain(hipCtx_t* context, int device) {
    return call("hipDevicePrimaryCtxRetain", [&] {
        require_pointer(context, "pctx");
        *context = Contexts::handle_of(checked_device(device));
    });
}
HIPKITTENS_EXPORT hipError_t hipDevicePrimaryCtxRelease(int device) {
    return call("hipDevicePrimaryCtxRelease", [&] { checked_device(device); });
}
HIPKITTENS_EXPORT hipError_t hipDevicePrimaryCtxGetState(int device, unsigned int* flags, int* active) {
    return call("hipDevicePrimaryCtxGetState", [&] {
        checked_device(device);
        if (flags) *flags = 0;
        if (active) *active = device == thread_state().device;
    });
}

HIPKITTENS_EXPORT hipError_t hipDeviceGetUuid(void* uuid, int device) {
    return call("hipDeviceGetUuid", [&] {
        require_pointer(uuid, "uuid");
        char text[17];
        std::snprintf(text, sizeof text, "simulated%07x", static_cast<unsigned>(checked_device(device)));
        std::memcpy(uuid, text, 16);
    });
}
HIPKITTENS_EXPORT hipError_t hipDeviceGetPCIBusId(char* text, int length, int device) {
    return call("hipDeviceGetPCIBusId", [&] {
        require_pointer(text, "pciBusId");
        const std::string id = bus_id(checked_device(device));
        require(length > static_cast<int>(id.size()), hipErrorInvalidValue, "the text has no room for it");
        std::memcpy(text, id.c_str(), id.size() + 1);
    });
}
HIPKITTENS_EXPORT hipError_t hipDeviceGetByPCIBusId(int* device, const char* text) {
    return call("hipDeviceGetByPCIBusId", [&] {
        require_pointer(device, "device");
        require_pointer(text, "pciBusId");
        for (int each = 0; each < visible_device_count(); ++each)
            if (bus_id(each) == text) return void(*device = each);
        throw HipError(hipErrorInvalidDevice, std::string("no device has the bus id ") + text);
    });
}
HIPKITTENS_EXPORT hipError_t hipDeviceComputeCapability(int* major, int* minor, int device) {
    return call("hipDeviceComputeCapability", [&] {
        const DeviceFacts& facts = visible_device(checked_device(device));
        if (major) *major = facts.major;
        if (minor) *minor = facts.minor;
    });
}
HIPKITTENS_EXPORT hipError_t hipSetDeviceFlags(unsigned int) { return hipSuccess; }  // how the host waits
HIPKITTENS_EXPORT hipError_t hipGetDeviceFlags(unsigned int* flags) {
    return call("hipGetDeviceFlags", [&] {
        require_pointer(flags, "flags");
        *flags = 0;
    });
}
HIPKITTENS_EXPORT hipError_t hipDeviceGetLimit(size_t* value, int limit) {
    return call("hipDeviceGetLimit", [&] {
        require_pointer(value, "pValue");
        // hipLimitStackSize; there is neither a printf buffer nor a heap in kernels.
        require(limit == 0, hipErrorUnsupportedLimit, "only hipLimitStackSize (0) is known");
        *value = max_scratch_bytes_per_lane;
    });
}
HIPKITTENS_EXPORT hipError_t hipProfilerStart() { return hipSuccess; }
HIPKITTENS_EXPORT hipError_t hipProfilerStop() { return hipSuccess; }

// All devices share one memory.
HIPKITTENS_EXPORT hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) {
    return call("hipDeviceCanAccessPeer", [&] {
        require_pointer(can, "canAccessPeer");
        *can = checked_device(device) != checked_device(peer);
    });
}
HIPKITTENS_EXPORT hipError_t hipDeviceEnablePeerAccess(int peer, unsigned int flags) {
    return call("hipDeviceEnablePeerAccess", [&] {
        require(flags == 0, hipErrorInvalidValue, "flags must be 0");
        require(checked_device(peer) != thread_state().device, hipErrorInvalidDevice,
                "a device is no peer of itself");
    });
}
HIPKITTENS_EXPORT hipError_t hipDeviceDisablePeerAccess(int peer) {
    return call("hipDeviceDisablePeerAccess", [&] { checked_device(peer); });
}

}  // namespace hipkittens::simulator
