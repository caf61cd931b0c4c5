// simulator/hip_refused.cpp: HIP's functions that are there to refuse, each with its reason.
// SPDX-License-Identifier: MIT
//
// Programs link to them, and continue if one of them reports that it is not supported.
#include "simulator/hip_call.h"

namespace hipkittens::simulator {

using namespace hip;

namespace {

[[noreturn]] void refuse(const char* reason) { throw HipError(hipErrorNotSupported, reason); }

constexpr const char other_process[] =
    "what hipMalloc gave out belongs to its process; hipMemCreate and hipMemExportToShareableHandle share "
    "memory";
constexpr const char other_events[] =
    "events belong to their process, whose streams run when they are queued";
constexpr const char no_dma[] = "simulated memory is the host's, and no driver has a dma-buf of it";
constexpr const char no_surfaces[] =
    "there are no arrays, and no instructions of images in gfx942 and gfx950";

}  // namespace

HIPKITTENS_EXPORT hipError_t hipIpcGetMemHandle(void*, void*) {
    return call("hipIpcGetMemHandle", [] { refuse(other_process); });
}
// HIP's handles are structures of 64 bytes, which are passed in memory.
struct HandleOfProcess {
    char bytes[64];
};
HIPKITTENS_EXPORT hipError_t hipIpcOpenMemHandle(void**, HandleOfProcess, unsigned int) {
    return call("hipIpcOpenMemHandle", [] { refuse(other_process); });
}
HIPKITTENS_EXPORT hipError_t hipIpcCloseMemHandle(void*) {
    return call("hipIpcCloseMemHandle", [] { refuse(other_process); });
}
HIPKITTENS_EXPORT hipError_t hipIpcGetEventHandle(void*, hipEvent_t) {
    return call("hipIpcGetEventHandle", [] { refuse(other_events); });
}
HIPKITTENS_EXPORT hipError_t hipIpcOpenEventHandle(hipEvent_t*, HandleOfProcess) {
    return call("hipIpcOpenEventHandle", [] { refuse(other_events); });
}
HIPKITTENS_EXPORT hipError_t hipMemGetHandleForAddressRange(void*, void*, size_t, int, unsigned long long) {
    return call("hipMemGetHandleForAddressRange", [] { refuse(no_dma); });
}
HIPKITTENS_EXPORT hipError_t hipCreateSurfaceObject(void**, const void*) {
    return call("hipCreateSurfaceObject", [] { refuse(no_surfaces); });
}
HIPKITTENS_EXPORT hipError_t hipDestroySurfaceObject(void*) {
    return call("hipDestroySurfaceObject", [] { refuse(no_surfaces); });
}

}  // namespace hipkittens::simulator
