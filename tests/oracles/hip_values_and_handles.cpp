// tests/oracles/hip_values_and_handles.cpp: a HIP host program that waits for values in memory, writes into the graph of a capture that is
// going on, copies in batches, and shares memory by file descriptors; by HIP's own headers, without a kernel.
// SPDX-License-Identifier: MIT
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(call)                                                                       \
    if (hipError_t status = (call); status != hipSuccess) {                               \
        fprintf(stderr, "line %d, %s: %s\n", __LINE__, #call, hipGetErrorString(status)); \
        return 1;                                                                         \
    }
#define EXPECT(condition)                                           \
    if (!(condition)) {                                             \
        fprintf(stderr, "line %d: not %s\n", __LINE__, #condition); \
        return 1;                                                   \
    }

static hipStreamBatchMemOpParams operation(hipStreamBatchMemOpType type, void* address, uint64_t value,
                                           unsigned int flags = 0) {
    hipStreamBatchMemOpParams all = {};
    all.operation = type;
    all.writeValue.address = address;
    all.writeValue.value64 = value;
    all.writeValue.flags = flags;
    return all;
}

static int values() {
    uint64_t* data;
    uint32_t* low;
    CHECK(hipMalloc(reinterpret_cast<void**>(&data), 64));
    low = reinterpret_cast<uint32_t*>(data);
    CHECK(hipMemset(data, 0, 64));
    hipStream_t stream;
    CHECK(hipStreamCreate(&stream));
    hipStreamBatchMemOpParams batch[] = {
        operation(hipStreamMemOpWriteValue64, data, 0x1122334455667788),
        operation(hipStreamMemOpWriteValue32, low, 9),
        operation(hipStreamMemOpWaitValue32, low, 9, hipStreamWaitValueEq),
        operation(hipStreamMemOpWaitValue64, data, 0x1122334400000001, hipStreamWaitValueGte),
    };
    CHECK(hipStreamBatchMemOp(stream, 4, batch, 0));
    uint64_t found = 0;
    CHECK(hipMemcpy(&found, data, 8, hipMemcpyDeviceToHost));
    EXPECT(found == 0x1122334400000009);
    EXPECT(hipStreamWaitValue32(stream, low, 8, hipStreamWaitValueEq, ~0u) == hipErrorNotSupported);
    EXPECT(hipStreamWaitValue32(stream, low, 9, 4, ~0u) == hipErrorInvalidValue);
    EXPECT(hipStreamWriteValue64(stream, low + 1, 0, 0) == hipErrorInvalidValue);  // no multiple of 8
    EXPECT(hipStreamWriteValue32(stream, nullptr, 0, 0) == hipErrorInvalidValue);
    batch[1].operation = hipStreamMemOpBarrier;
    EXPECT(hipStreamBatchMemOp(stream, 4, batch, 0) == hipErrorNotSupported);
    EXPECT(hipStreamBatchMemOp(stream, 0, batch, 0) == hipErrorInvalidValue);
    EXPECT(hipStreamBatchMemOp(stream, 4, batch, 1) == hipErrorInvalidValue);

    // A node that a program adds while a stream is captured, and has the stream's next work come after.
    CHECK(hipStreamBeginCapture(stream, hipStreamCaptureModeRelaxed));
    CHECK(hipMemsetD32Async(data, 1, 2, stream));
    hipStreamCaptureStatus captured;
    unsigned long long id = 0;
    hipGraph_t graph, same, ended;
    const hipGraphNode_t* last;
    size_t count = 0;
    CHECK(hipStreamGetCaptureInfo_v2(stream, &captured, &id, &graph, &last, &count));
    EXPECT(captured == hipStreamCaptureStatusActive && id != 0 && count == 1);
    hipStreamBatchMemOpParams write = operation(hipStreamMemOpWriteValue64, data, 77);
    hipBatchMemOpNodeParams parameters = {};
    parameters.count = 1;
    parameters.paramArray = &write;
    hipGraphNode_t node;
    CHECK(hipGraphAddBatchMemOpNode(&node, graph, last, count, &parameters));
    CHECK(hipStreamUpdateCaptureDependencies(stream, &node, 1, hipStreamSetCaptureDependencies));
    CHECK(hipMemcpyAsync(data + 1, data, 8, hipMemcpyDeviceToDevice, stream));
    CHECK(hipStreamGetCaptureInfo_v2(stream, &captured, &id, &same, nullptr, nullptr));
    EXPECT(same == graph);
    hipGraph_t other;
    hipGraphNode_t foreign;
    CHECK(hipGraphCreate(&other, 0));
    CHECK(hipGraphAddEmptyNode(&foreign, other, nullptr, 0));
    EXPECT(hipStreamUpdateCaptureDependencies(stream, &foreign, 1, 0) == hipErrorInvalidValue);
    EXPECT(hipStreamUpdateCaptureDependencies(stream, &node, 1, 2) == hipErrorInvalidValue);
    CHECK(hipStreamEndCapture(stream, &ended));
    EXPECT(ended == graph);
    EXPECT(hipStreamUpdateCaptureDependencies(stream, &node, 1, 0) == hipErrorIllegalState);
    CHECK(hipGraphGetNodes(graph, nullptr, &count));
    EXPECT(count == 3);
    hipGraphExec_t executable;
    CHECK(hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0));
    CHECK(hipGraphLaunch(executable, stream));
    uint64_t both[2];
    CHECK(hipMemcpy(both, data, 16, hipMemcpyDeviceToHost));
    EXPECT(both[0] == 77 && both[1] == 77);

    // A child graph's work, replaced in what was instantiated.
    hipGraph_t parent, child, second;
    CHECK(hipGraphCreate(&parent, 0));
    CHECK(hipGraphCreate(&child, 0));
    CHECK(hipGraphCreate(&second, 0));
    CHECK(hipGraphAddBatchMemOpNode(&node, child, nullptr, 0, &parameters));
    write = operation(hipStreamMemOpWriteValue64, data, 78);
    CHECK(hipGraphAddBatchMemOpNode(&node, second, nullptr, 0, &parameters));
    CHECK(hipGraphAddChildGraphNode(&node, parent, nullptr, 0, child));
    CHECK(hipGraphInstantiate(&executable, parent, nullptr, nullptr, 0));
    CHECK(hipGraphExecChildGraphNodeSetParams(executable, node, second));
    CHECK(hipGraphLaunch(executable, stream));
    CHECK(hipMemcpy(both, data, 8, hipMemcpyDeviceToHost));
    EXPECT(both[0] == 78);
    EXPECT(hipGraphExecChildGraphNodeSetParams(executable, foreign, second) == hipErrorInvalidValue);
    CHECK(hipFree(data));
    return 0;
}

static int batches() {
    char host[] = "abcdefgh", *data;
    CHECK(hipMalloc(reinterpret_cast<void**>(&data), 16));
    void *to[] = {data, data + 4, data + 8}, *from[] = {host, host + 2, data};
    size_t sizes[] = {4, 2, 6}, begins[] = {0, 2}, failed = 0;
    hipMemcpyAttributes attributes[2] = {};
    attributes[0].srcAccessOrder = hipMemcpySrcAccessOrderDuringApiCall;
    attributes[1].srcAccessOrder = hipMemcpySrcAccessOrderStream;
    CHECK(hipMemcpyBatchAsync(to, from, sizes, 3, attributes, begins, 2, &failed, nullptr));
    char back[16];
    CHECK(hipMemcpy(back, data, 16, hipMemcpyDeviceToHost));
    const char expected[] = "abcdcd";
    for (int i = 0; i < 6; ++i) EXPECT(back[i] == expected[i] && back[8 + i] == expected[i]);
    sizes[1] = 1000;
    EXPECT(hipMemcpyBatchAsync(to, from, sizes, 3, attributes, begins, 2, &failed, nullptr) != hipSuccess);
    EXPECT(failed == 1);
    begins[1] = 0;
    EXPECT(hipMemcpyBatchAsync(to, from, sizes, 3, attributes, begins, 2, &failed, nullptr) ==
           hipErrorInvalidValue);
    EXPECT(failed == SIZE_MAX);
    attributes[0].srcAccessOrder = hipMemcpySrcAccessOrderInvalid;
    EXPECT(hipMemcpyBatchAsync(to, from, sizes, 1, attributes, begins, 1, &failed, nullptr) ==
           hipErrorInvalidValue);

    hipPointer_attribute asked[] = {HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR, HIP_POINTER_ATTRIBUTE_RANGE_SIZE,
                                    HIP_POINTER_ATTRIBUTE_IS_MANAGED, HIP_POINTER_ATTRIBUTE_MEMORY_TYPE};
    void* begin = nullptr;
    size_t bytes = 0;
    bool managed = true;
    hipMemoryType type = hipMemoryTypeHost;
    void* told[] = {&begin, &bytes, &managed, &type};
    CHECK(hipDrvPointerGetAttributes(4, asked, told, data + 5));
    EXPECT(begin == data && bytes == 16 && !managed && type == hipMemoryTypeDevice);
    EXPECT(hipDrvPointerGetAttributes(4, asked, told, host) == hipErrorInvalidValue);
    asked[0] = HIP_POINTER_ATTRIBUTE_P2P_TOKENS;
    EXPECT(hipDrvPointerGetAttributes(4, asked, told, data) == hipErrorInvalidValue);
    CHECK(hipFree(data));
    return 0;
}

static int mapped(hipMemGenericAllocationHandle_t memory, size_t bytes, int** range) {
    hipMemAccessDesc access = {};
    access.location.type = hipMemLocationTypeDevice;
    access.flags = hipMemAccessFlagsProtReadWrite;
    CHECK(hipMemAddressReserve(reinterpret_cast<void**>(range), bytes, 0, nullptr, 0));
    CHECK(hipMemMap(*range, bytes, 0, memory, 0));
    CHECK(hipMemSetAccess(*range, bytes, &access, 1));
    return 0;
}

static int handles() {
    hipMemAllocationProp where = {};
    where.type = hipMemAllocationTypePinned;
    where.requestedHandleTypes = hipMemHandleTypePosixFileDescriptor;
    where.location.type = hipMemLocationTypeDevice;
    size_t bytes = 0;
    CHECK(hipMemGetAllocationGranularity(&bytes, &where, hipMemAllocationGranularityMinimum));
    hipMemGenericAllocationHandle_t memory, again;
    CHECK(hipMemCreate(&memory, bytes, &where, 0));
    int descriptor = -1, *mine, *theirs;
    CHECK(hipMemExportToShareableHandle(&descriptor, memory, hipMemHandleTypePosixFileDescriptor, 0));
    if (mapped(memory, bytes, &mine)) return 1;
    CHECK(hipMemsetD32(mine, 5, 4));
    const pid_t child = fork();
    if (child == 0) {
        int found = 0;
        const auto handle = reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor));
        const auto add_one = [&] {
            CHECK(hipMemImportFromShareableHandle(&again, handle, hipMemHandleTypePosixFileDescriptor));
            if (mapped(again, bytes, &theirs)) return 1;
            CHECK(hipMemcpy(&found, theirs, 4, hipMemcpyDeviceToHost));
            CHECK(hipMemsetD32(theirs, found + 1, 4));
            return 0;
        };
        _exit(add_one());
    }
    int status = 1, found = 0;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    CHECK(hipMemcpy(&found, mine + 3, 4, hipMemcpyDeviceToHost));
    EXPECT(found == 6);
    // As programs for ROCm before 7.1 hand it over.
    CHECK(hipMemImportFromShareableHandle(&again, &descriptor, hipMemHandleTypePosixFileDescriptor));
    CHECK(hipMemRelease(again));
    close(descriptor);
    EXPECT(hipMemImportFromShareableHandle(&again, &descriptor, hipMemHandleTypePosixFileDescriptor) ==
           hipErrorInvalidValue);
    EXPECT(hipMemExportToShareableHandle(&descriptor, memory, hipMemHandleTypeWin32, 0) ==
           hipErrorNotSupported);
    EXPECT(hipMemGetHandleForAddressRange(&descriptor, mine, 4096, hipMemRangeHandleTypeDmaBufFd, 0) ==
           hipErrorNotSupported);

    hipIpcMemHandle_t of_memory = {};
    hipIpcEventHandle_t of_event = {};
    hipEvent_t event;
    void* pointer;
    CHECK(hipEventCreate(&event));
    EXPECT(hipIpcGetMemHandle(&of_memory, mine) == hipErrorNotSupported);
    EXPECT(hipIpcOpenMemHandle(&pointer, of_memory, hipIpcMemLazyEnablePeerAccess) == hipErrorNotSupported);
    EXPECT(hipIpcCloseMemHandle(mine) == hipErrorNotSupported);
    EXPECT(hipIpcGetEventHandle(&of_event, event) == hipErrorNotSupported);
    EXPECT(hipIpcOpenEventHandle(&event, of_event) == hipErrorNotSupported);
    hipSurfaceObject_t surface = nullptr;
    hipResourceDesc of_surface = {};
    EXPECT(hipCreateSurfaceObject(&surface, &of_surface) == hipErrorNotSupported);
    EXPECT(hipDestroySurfaceObject(surface) == hipErrorNotSupported);
    return 0;
}

int main() {
    if (values() || batches() || handles()) return 1;
    puts("right");
    return 0;
}
