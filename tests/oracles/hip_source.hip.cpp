// tests/oracles/hip_source.hip.cpp: an ordinary HIP program, host and kernels in one source, as hipcc takes it.
// SPDX-License-Identifier: MIT
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
#include <stdio.h>
#include <string.h>

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))

__device__ float offset = 1.0f;

__global__ void scale(float* data, float factor, int n) {
    const int i = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
    if (i < n) data[i] = data[i] * factor + offset;
}

#if !defined(__HIP_DEVICE_COMPILE__)

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

static int on_each_device(int device) {
    constexpr int n = 1000;
    CHECK(hipSetDevice(device));
    (void)hipGetLastError();  // of calls that had to fail, on the device before
    float *host, *data, *pooled;
    CHECK(hipHostMalloc(reinterpret_cast<void**>(&host), n * sizeof(float), hipHostMallocDefault));
    hipPointerAttribute_t attributes;
    CHECK(hipPointerGetAttributes(&attributes, host + 1));
    EXPECT(attributes.type == hipMemoryTypeHost);
    CHECK(hipPointerGetAttributes(&attributes, &device));
    EXPECT(attributes.type == hipMemoryTypeUnregistered);
    CHECK(hipMalloc(reinterpret_cast<void**>(&data), n * sizeof(float)));
    hipStream_t stream, second;
    CHECK(hipStreamCreateWithPriority(&stream, hipStreamNonBlocking, -1));
    CHECK(hipStreamCreate(&second));
    CHECK(hipMallocAsync(reinterpret_cast<void**>(&pooled), n * sizeof(float), stream));

    // By the host's function, with a variable of the program's.
    for (int i = 0; i < n; ++i) host[i] = static_cast<float>(i);
    CHECK(hipMemcpyHtoDAsync(data, host, n * sizeof(float), stream));
    scale<<<dim3(4), dim3(256), 0, stream>>>(data, 3.0f, n);
    CHECK(hipGetLastError());
    const float two = 2.0f;
    CHECK(hipMemcpyToSymbol(offset, &two, sizeof two, 0, hipMemcpyHostToDevice));
    scale<<<4, 256>>>(data, 1.0f, n);
    CHECK(hipMemcpyDtoHAsync(host, data, n * sizeof(float), stream));
    for (int i = 0; i < n; ++i) EXPECT(host[i] == 3.0f * static_cast<float>(i) + 3.0f);

    // A fork and a join of two streams, captured, and run twice.
    hipEvent_t forked, joined;
    CHECK(hipEventCreate(&forked));
    CHECK(hipEventCreate(&joined));
    CHECK(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
    CHECK(hipMemsetD32Async(data, 0, n, stream));
    CHECK(hipEventRecord(forked, stream));
    CHECK(hipStreamWaitEvent(second, forked, 0));
    scale<<<4, 256, 0, second>>>(data, 1.0f, n);  // 2
    CHECK(hipEventRecord(joined, second));
    CHECK(hipMemsetAsync(pooled, 0, n * sizeof(float), stream));
    CHECK(hipStreamWaitEvent(stream, joined, 0));
    scale<<<4, 256, 0, stream>>>(data, 5.0f, n);  // 12
    CHECK(hipMemcpyDtoDAsync(pooled, data, n * sizeof(float), stream));
    int calls = 0;
    CHECK(hipLaunchHostFunc(stream, [](void* calls) { ++*static_cast<int*>(calls); }, &calls));
    hipStreamCaptureStatus captured;
    CHECK(hipStreamIsCapturing(second, &captured));
    EXPECT(captured == hipStreamCaptureStatusActive);
    EXPECT(hipStreamSynchronize(stream) == hipErrorStreamCaptureUnsupported);
    hipGraph_t graph;
    CHECK(hipStreamEndCapture(stream, &graph));
    CHECK(hipMemcpy(host, data, n * sizeof(float), hipMemcpyDeviceToHost));
    EXPECT(host[7] == 24.0f && calls == 0);  // nothing of it has run
    size_t count = 0;
    CHECK(hipGraphGetNodes(graph, nullptr, &count));
    EXPECT(count == 6);
    hipGraphExec_t executable;
    CHECK(hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0));
    CHECK(hipGraphDestroy(graph));
    for (int run = 1; run <= 2; ++run) {
        CHECK(hipGraphLaunch(executable, stream));
        CHECK(hipMemcpy(host, pooled, n * sizeof(float), hipMemcpyDeviceToHost));
        EXPECT(host[0] == 12.0f && host[n - 1] == 12.0f && calls == run);
    }
    CHECK(hipGraphExecDestroy(executable));

    // A graph node by node, with a dependency that is added last.
    CHECK(hipGraphCreate(&graph, 0));
    float factor = 10.0f;
    int length = n;
    void* parameters[] = {&data, &factor, &length};
    hipKernelNodeParams launch = {};
    launch.func = reinterpret_cast<void*>(&scale);
    launch.gridDim = dim3(4);
    launch.blockDim = dim3(256);
    launch.kernelParams = parameters;
    hipGraphNode_t node, fill, end;
    CHECK(hipGraphAddKernelNode(&node, graph, nullptr, 0, &launch));
    hipMemsetParams zeros = {};
    zeros.dst = data;
    zeros.elementSize = 4;
    zeros.width = n;
    zeros.height = 1;
    CHECK(hipGraphAddMemsetNode(&fill, graph, nullptr, 0, &zeros));
    CHECK(hipGraphAddDependencies(graph, &fill, &node, 1));
    CHECK(
        hipGraphAddMemcpyNode1D(&end, graph, &node, 1, host, data, n * sizeof(float), hipMemcpyDeviceToHost));
    CHECK(hipGraphInstantiateWithFlags(&executable, graph, 0));
    CHECK(hipGraphLaunch(executable, stream));
    EXPECT(host[0] == 2.0f && host[n - 1] == 2.0f);
    zeros.value = 0x40400000;  // 3
    CHECK(hipGraphExecMemsetNodeSetParams(executable, fill, &zeros));
    CHECK(hipGraphLaunch(executable, stream));
    EXPECT(host[5] == 32.0f);
    CHECK(hipGraphAddDependencies(graph, &end, &fill, 1));  // a ring
    hipGraphExec_t none;
    EXPECT(hipGraphInstantiate(&none, graph, nullptr, nullptr, 0) == hipErrorInvalidValue);

    // Addresses and memory apart.
    hipMemAllocationProp where = {};
    where.type = hipMemAllocationTypePinned;
    where.location.type = hipMemLocationTypeDevice;
    where.location.id = device;
    size_t granularity = 0;
    CHECK(hipMemGetAllocationGranularity(&granularity, &where, hipMemAllocationGranularityMinimum));
    void* range = nullptr;
    CHECK(hipMemAddressReserve(&range, 2 * granularity, 0, nullptr, 0));
    hipMemGenericAllocationHandle_t memory;
    CHECK(hipMemCreate(&memory, granularity, &where, 0));
    void* const half = static_cast<char*>(range) + granularity;
    CHECK(hipMemMap(half, granularity, 0, memory, 0));
    EXPECT(hipMemcpy(half, data, n * sizeof(float), hipMemcpyDeviceToDevice) != hipSuccess);  // no access yet
    hipMemAccessDesc access = {where.location, hipMemAccessFlagsProtReadWrite};
    CHECK(hipMemSetAccess(half, granularity, &access, 1));
    CHECK(hipMemcpy(half, data, n * sizeof(float), hipMemcpyDeviceToDevice));
    scale<<<4, 256>>>(static_cast<float*>(half), 1.0f, n);
    CHECK(hipMemcpy(host, half, n * sizeof(float), hipMemcpyDeviceToHost));
    EXPECT(host[3] == 34.0f);
    EXPECT(hipMemAddressFree(range, 2 * granularity) == hipErrorInvalidValue);  // mapped
    CHECK(hipMemUnmap(half, granularity));
    CHECK(hipMemRelease(memory));
    CHECK(hipMemAddressFree(range, 2 * granularity));

    // A box of 2 planes of 3 rows of 4 floats, out of planes of 10 rows of 8 floats, by a node.
    hipMemcpy3DParms box = {};
    box.srcPtr = {data, 32, 8, 10};
    box.srcPos = {8, 2, 1};
    box.dstPtr = {host, 16, 4, 3};
    box.extent = {16, 3, 2};
    box.kind = hipMemcpyDeviceToHost;
    for (int i = 0; i < n; ++i) host[i] = static_cast<float>(i);
    CHECK(hipMemcpy(data, host, n * sizeof(float), hipMemcpyHostToDevice));
    hipGraph_t copies;
    CHECK(hipGraphCreate(&copies, 0));
    CHECK(hipGraphAddMemcpyNode(&node, copies, nullptr, 0, &box));
    CHECK(hipGraphInstantiate(&executable, copies, nullptr, nullptr, 0));
    CHECK(hipGraphLaunch(executable, nullptr));
    for (int i = 0; i < 24; ++i)
        EXPECT(host[i] == static_cast<float>((1 + i / 12) * 80 + (2 + i / 4 % 3) * 8 + 2 + i % 4));
    EXPECT(host[24] == 24.0f);

    // Contexts and pools are their devices'.
    hipCtx_t context, current;
    CHECK(hipDevicePrimaryCtxRetain(&context, device));
    CHECK(hipCtxPushCurrent(context));
    CHECK(hipCtxGetCurrent(&current));
    EXPECT(current == context);
    CHECK(hipCtxPopCurrent(&current));
    EXPECT(hipCtxPopCurrent(&current) == hipErrorInvalidContext);
    EXPECT(hipCtxSetCurrent(reinterpret_cast<hipCtx_t>(16)) == hipErrorInvalidContext);
    char bus[32];
    int found = -1;
    CHECK(hipDeviceGetPCIBusId(bus, sizeof bus, device));
    CHECK(hipDeviceGetByPCIBusId(&found, bus));
    EXPECT(found == device);
    hipMemPool_t pool;
    CHECK(hipDeviceGetDefaultMemPool(&pool, device));
    CHECK(hipMemPoolTrimTo(pool, 0));
    EXPECT(hipMemPoolTrimTo(reinterpret_cast<hipMemPool_t>(context), 0) == hipErrorInvalidValue);

    int grid = 0, block = 0;
    CHECK(hipOccupancyMaxPotentialBlockSize(&grid, &block, reinterpret_cast<void*>(&scale), 0, 0));
    EXPECT(block == 1024 && grid > 0);
    const float one = 1.0f;
    CHECK(hipMemcpyToSymbol(offset, &one, sizeof one, 0, hipMemcpyHostToDevice));
    CHECK(hipFreeAsync(pooled, stream));
    CHECK(hipFree(data));
    CHECK(hipHostFree(host));
    return 0;
}

int main() {
    int devices = 0, version = 0;
    CHECK(hipGetDeviceCount(&devices));
    CHECK(hipRuntimeGetVersion(&version));
    EXPECT(version / 10000000 == 7);
    for (int device = 0; device < devices; ++device) {
        hipDeviceProp_t properties;
        CHECK(hipGetDeviceProperties(&properties, device));
        if (const int failed = on_each_device(device)) return failed;
        printf("%.6s right\n", properties.gcnArchName);
    }
    return 0;
}

#endif
