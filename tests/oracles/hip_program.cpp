// tests/oracles/hip_program.cpp: an ordinary HIP host program: loads a module, launches, times, copies back.
// SPDX-License-Identifier: MIT
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <vector>

#define CHECK(call)                                                         \
    if (hipError_t status = (call); status != hipSuccess) {                 \
        std::fprintf(stderr, "%s: %s\n", #call, hipGetErrorString(status)); \
        return 1;                                                           \
    }

int main(int count, char** arguments) {
    if (count != 3) return 2;
    int devices = 0;
    CHECK(hipGetDeviceCount(&devices));
    for (int device = 0; device < devices; ++device) {
        hipDeviceProp_t properties;
        CHECK(hipGetDeviceProperties(&properties, device));
        if (std::strncmp(properties.gcnArchName, arguments[1], std::strlen(arguments[1])) != 0) continue;
        CHECK(hipSetDevice(device));
        hipModule_t module;
        hipFunction_t scale;
        CHECK(hipModuleLoad(&module, arguments[2]));
        CHECK(hipModuleGetFunction(&scale, module, "scale"));
        const int n = 1000;
        std::vector<float> host(n);
        for (int i = 0; i < n; ++i) host[i] = static_cast<float>(i);
        float* data;
        CHECK(hipMalloc(reinterpret_cast<void**>(&data), n * sizeof(float)));
        hipStream_t stream;
        hipEvent_t begin, end;
        CHECK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
        CHECK(hipEventCreate(&begin));
        CHECK(hipEventCreateWithFlags(&end, hipEventDefault));
        CHECK(hipMemcpyAsync(data, host.data(), n * sizeof(float), hipMemcpyHostToDevice, stream));
        float factor = 3.0f;
        int length = n;
        void* parameters[] = {&data, &factor, &length};
        CHECK(hipEventRecord(begin, stream));
        CHECK(hipModuleLaunchKernel(scale, (n + 255) / 256, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
        CHECK(
            hipModuleLaunchCooperativeKernel(scale, (n + 255) / 256, 1, 1, 256, 1, 1, 0, stream, parameters));
        CHECK(hipEventRecord(end, stream));
        CHECK(hipEventSynchronize(end));
        float milliseconds = -1;
        CHECK(hipEventElapsedTime(&milliseconds, begin, end));
        CHECK(hipMemcpy(host.data(), data, n * sizeof(float), hipMemcpyDeviceToHost));
        for (int i = 0; i < n; ++i)
            if (host[i] != 9.0f * static_cast<float>(i) || milliseconds < 0) return 3;
        CHECK(hipFree(data));
        CHECK(hipModuleUnload(module));
        std::printf("%s: right\n", properties.gcnArchName);
        return 0;
    }
    return 4;
}
