// tests/gpu/hip_on_cuda.cu: a libamdhip64 whose devices, memory, streams, events and graphs are those of NVIDIA GPUs.
// SPDX-License-Identifier: MIT
//
// Kernels run in the simulator, in the order of their stream: a launch puts three things there, which a graph can hold as well. The
// allocations that its arguments point into are copied to the host, a host function runs the kernel on these copies, and bytes that
// it changed are written back, so that what other streams do to their neighbours stays. A launch returns at once, as a GPU's does.
//
// HIP_ON_CUDA_SIMULATOR names libhipkittens_simulator.so, HIP_ON_CUDA_TARGET the target of every device.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "hip/hip_abi.h"
#include "simulator/simulator.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// Not in the global namespace, where nvcc's own code behind this file names CUDA's dim3.
namespace hip_on_cuda {

using namespace hipkittens::hip;

namespace {

struct Simulator {
#define HIP_FUNCTION(result, name, parameters) result(*name) parameters = nullptr;
#include "hip/hip_functions.def"
#undef HIP_FUNCTION
    hipError_t (*hipHostRegister)(void*, size_t, unsigned int) = nullptr;
    decltype(&hipkittens_apply_process_settings) apply_process_settings = nullptr;
    decltype(&hipkittens_last_error) last_error = nullptr;
    int device = 0;

    Simulator() {
        const char* path = std::getenv("HIP_ON_CUDA_SIMULATOR");
        void* library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
        if (!library) {
            std::fprintf(stderr, "hip_on_cuda: HIP_ON_CUDA_SIMULATOR is %s: %s\n", path ? path : "not set", dlerror());
            std::abort();
        }
        const auto find = [&](auto& function, const char* name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
        };
#define HIP_FUNCTION(result, name, parameters) find(name, #name);
#include "hip/hip_functions.def"
#undef HIP_FUNCTION
        find(hipHostRegister, "hipHostRegister");
        find(apply_process_settings, "hipkittens_apply_process_settings");
        find(last_error, "hipkittens_last_error");
        const char* target = std::getenv("HIP_ON_CUDA_TARGET");
        device = target && std::string(target) == "gfx950" ? 1 : 0;
    }

    // Its current device is the calling thread's.
    Simulator& current() {
        hipSetDevice(device);
        return *this;
    }
};

Simulator& simulator() {
    static Simulator& one = *new Simulator;
    return one;
}

// CUDA's numbers are HIP's wherever both have the error.
hipError_t as_hip(cudaError_t error) { return static_cast<hipError_t>(error); }
cudaStream_t as_cuda(hipStream_t stream) { return reinterpret_cast<cudaStream_t>(stream); }

// An allocation's copy on the host, and what it held before the kernel.
struct Copy {
    char* device = nullptr;
    size_t bytes = 0;
    char *now = nullptr, *before = nullptr;
};

// Host memory that a GPU can read, by size: a launch that is under way has copies of its own.
class Buffers {
  public:
    cudaError_t take(size_t bytes, char*& buffer) {
        {
            std::lock_guard lock(mutex_);
            std::vector<char*>& idle = idle_[bytes];
            if (!idle.empty()) {
                buffer = idle.back();
                idle.pop_back();
                return cudaSuccess;
            }
        }
        // An allocation is allowed while a stream is captured, only not in this mode of it.
        cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        cudaThreadExchangeStreamCaptureMode(&mode);
        const cudaError_t error =
            cudaHostAlloc(reinterpret_cast<void**>(&buffer), bytes, cudaHostAllocPortable | cudaHostAllocMapped);
        cudaThreadExchangeStreamCaptureMode(&mode);
        if (error == cudaSuccess) simulator().current().hipHostRegister(buffer, bytes, 0);
        return error;
    }
    void give_back(size_t bytes, char* buffer) {
        std::lock_guard lock(mutex_);
        idle_[bytes].push_back(buffer);
    }

  private:
    std::mutex mutex_;
    std::map<size_t, std::vector<char*>> idle_;
};

Buffers& buffers() {
    static Buffers& all = *new Buffers;
    return all;
}

struct Job {
    hipFunction_t function = nullptr;
    unsigned int grid[3] = {}, block[3] = {}, shared_bytes = 0;
    std::vector<uint64_t> arguments;
    size_t argument_bytes = 0;
    std::vector<Copy> copies;
};

std::mutex failure_mutex;
std::string failure;  // of the first kernel that failed; a host function cannot tell its stream

void run(void* data) {
    Job& job = *static_cast<Job*>(data);
    for (const Copy& copy : job.copies) std::memcpy(copy.before, copy.now, copy.bytes);
    Simulator& device = simulator().current();
    device.apply_process_settings();
    void* extra[] = {launch_param_buffer_pointer, job.arguments.data(), launch_param_buffer_size, &job.argument_bytes,
                     launch_param_end};
    const hipError_t error =
        device.hipModuleLaunchKernel(job.function, job.grid[0], job.grid[1], job.grid[2], job.block[0], job.block[1],
                                     job.block[2], job.shared_bytes, nullptr, nullptr, extra);
    if (error == hipSuccess) return;
    std::lock_guard lock(failure_mutex);
    if (failure.empty()) failure = std::string(device.hipGetErrorName(error)) + ": " + device.last_error();
}

void finish(void* data) {
    Job* job = static_cast<Job*>(data);
    for (const Copy& copy : job->copies) {
        buffers().give_back(copy.bytes, copy.now);
        buffers().give_back(copy.bytes, copy.before);
    }
    delete job;
}

__global__ void write_changes(char* to, const char* now, const char* before, size_t bytes) {
    const size_t first = (size_t{blockIdx.x} * blockDim.x + threadIdx.x) * 16, step = size_t{gridDim.x} * blockDim.x * 16;
    for (size_t at = first; at < bytes; at += step) {
        const uint4 is = *reinterpret_cast<const uint4*>(now + at), was = *reinterpret_cast<const uint4*>(before + at);
        if (is.x == was.x && is.y == was.y && is.z == was.z && is.w == was.w) continue;
        for (size_t byte = at; byte < at + 16; ++byte)
            if (now[byte] != before[byte]) to[byte] = now[byte];
    }
}

// Of the driver, which only a machine with a GPU has.
decltype(&cuMemGetAddressRange) address_range() {
    static const auto function =
        reinterpret_cast<decltype(&cuMemGetAddressRange)>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemGetAddressRange_v2"));
    return function;
}

// Points the arguments to copies: every eight bytes that are an address of device memory. A GPU does not reach another's memory
// before somebody gives it access.
cudaError_t take_copies(Job& job) {
    int device = 0;
    if (const cudaError_t error = cudaGetDevice(&device)) return error;
    for (uint64_t& word : job.arguments) {
        if (word < 4096) continue;
        cudaPointerAttributes attributes{};
        const cudaError_t known = cudaPointerGetAttributes(&attributes, reinterpret_cast<void*>(word));
        if (known != cudaSuccess) cudaGetLastError();
        if (known != cudaSuccess || attributes.type != cudaMemoryTypeDevice) continue;
        if (attributes.device != device) return cudaErrorInvalidDevice;
        CUdeviceptr base = 0;
        size_t bytes = 0;
        if (address_range()(&base, &bytes, word) != CUDA_SUCCESS) return cudaErrorInvalidValue;
        Copy* copy = nullptr;
        for (Copy& one : job.copies)
            if (one.device == reinterpret_cast<char*>(base)) copy = &one;
        if (!copy) {
            Copy added{reinterpret_cast<char*>(base), bytes};
            if (const cudaError_t error = buffers().take(bytes, added.now)) return error;
            if (const cudaError_t error = buffers().take(bytes, added.before)) return error;
            copy = &job.copies.emplace_back(added);
        }
        word = reinterpret_cast<uint64_t>(copy->now) + (word - base);
    }
    return cudaSuccess;
}

}  // namespace

EXPORT hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned int grid_x, unsigned int grid_y,
                                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                        unsigned int block_z, unsigned int shared_bytes, hipStream_t stream, void**,
                                        void** extra) {
    Job* job = new Job{function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
    const void* given = nullptr;
    for (void** word = extra; *word != launch_param_end; word += 2) {
        if (word[0] == launch_param_buffer_pointer) given = word[1];
        if (word[0] == launch_param_buffer_size) job->argument_bytes = *static_cast<size_t*>(word[1]);
    }
    job->arguments.resize((job->argument_bytes + 7) / 8);
    std::memcpy(job->arguments.data(), given, job->argument_bytes);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (const cudaError_t error = cudaStreamIsCapturing(as_cuda(stream), &status)) return as_hip(error);
    if (const cudaError_t error = take_copies(*job)) return as_hip(error);
    for (const Copy& copy : job->copies) {
        if (const cudaError_t error = cudaMemcpyAsync(copy.now, copy.device, copy.bytes, cudaMemcpyDeviceToHost, as_cuda(stream)))
            return as_hip(error);
    }
    if (const cudaError_t error = cudaLaunchHostFunc(as_cuda(stream), run, job)) return as_hip(error);
    for (const Copy& copy : job->copies)
        write_changes<<<256, 256, 0, as_cuda(stream)>>>(copy.device, copy.now, copy.before, copy.bytes);
    if (const cudaError_t error = cudaGetLastError()) return as_hip(error);
    // A graph may be replayed at any time: what it was captured with stays.
    if (status == cudaStreamCaptureStatusActive) return hipSuccess;
    return as_hip(cudaLaunchHostFunc(as_cuda(stream), finish, job));
}

// What the first kernel that failed said, or "".
EXPORT const char* hip_on_cuda_failure() {
    std::lock_guard lock(failure_mutex);
    thread_local std::string said;
    said = failure;
    return said.c_str();
}

EXPORT hipError_t hipInit(unsigned int) { return as_hip(cudaFree(nullptr)); }
EXPORT hipError_t hipDriverGetVersion(int* version) { return simulator().hipDriverGetVersion(version); }
EXPORT hipError_t hipRuntimeGetVersion(int* version) { return simulator().hipRuntimeGetVersion(version); }
EXPORT hipError_t hipGetDeviceCount(int* count) { return as_hip(cudaGetDeviceCount(count)); }
EXPORT hipError_t hipGetDevice(int* device) { return as_hip(cudaGetDevice(device)); }
EXPORT hipError_t hipSetDevice(int device) { return as_hip(cudaSetDevice(device)); }
EXPORT hipError_t hipDeviceGetName(char* name, int length, int) {
    return simulator().hipDeviceGetName(name, length, simulator().device);
}
EXPORT hipError_t hipDeviceGetAttribute(int* value, int attribute, int) {
    return simulator().hipDeviceGetAttribute(value, attribute, simulator().device);
}
EXPORT hipError_t hipGetDevicePropertiesR0600(void* properties, int) {
    return simulator().hipGetDevicePropertiesR0600(properties, simulator().device);
}
EXPORT hipError_t hipDeviceSynchronize() { return as_hip(cudaDeviceSynchronize()); }

EXPORT hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
    return simulator().current().hipModuleLoadData(module, image);
}
EXPORT hipError_t hipModuleUnload(hipModule_t module) { return simulator().hipModuleUnload(module); }
EXPORT hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name) {
    return simulator().hipModuleGetFunction(function, module, name);
}
EXPORT hipError_t hipFuncGetAttribute(int* value, int attribute, hipFunction_t function) {
    return simulator().hipFuncGetAttribute(value, attribute, function);
}

EXPORT hipError_t hipMalloc(void** pointer, size_t bytes) { return as_hip(cudaMalloc(pointer, bytes)); }
EXPORT hipError_t hipFree(void* pointer) { return as_hip(cudaFree(pointer)); }
EXPORT hipError_t hipMemcpy(void* to, const void* from, size_t bytes, int kind) {
    return as_hip(cudaMemcpy(to, from, bytes, static_cast<cudaMemcpyKind>(kind)));
}
EXPORT hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, hipStream_t stream) {
    return as_hip(cudaMemcpyAsync(to, from, bytes, static_cast<cudaMemcpyKind>(kind), as_cuda(stream)));
}
EXPORT hipError_t hipMemsetAsync(void* to, int value, size_t bytes, hipStream_t stream) {
    return as_hip(cudaMemsetAsync(to, value, bytes, as_cuda(stream)));
}
EXPORT hipError_t hipStreamCreate(hipStream_t* stream) {
    return as_hip(cudaStreamCreate(reinterpret_cast<cudaStream_t*>(stream)));
}
EXPORT hipError_t hipStreamDestroy(hipStream_t stream) { return as_hip(cudaStreamDestroy(as_cuda(stream))); }
EXPORT hipError_t hipStreamSynchronize(hipStream_t stream) { return as_hip(cudaStreamSynchronize(as_cuda(stream))); }
EXPORT hipError_t hipStreamIsCapturing(hipStream_t stream, int* status) {
    return as_hip(cudaStreamIsCapturing(as_cuda(stream), reinterpret_cast<cudaStreamCaptureStatus*>(status)));
}
EXPORT hipError_t hipEventCreate(hipEvent_t* event) {
    return as_hip(cudaEventCreate(reinterpret_cast<cudaEvent_t*>(event)));
}
EXPORT hipError_t hipEventDestroy(hipEvent_t event) {
    return as_hip(cudaEventDestroy(reinterpret_cast<cudaEvent_t>(event)));
}
EXPORT hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
    return as_hip(cudaEventRecord(reinterpret_cast<cudaEvent_t>(event), as_cuda(stream)));
}
EXPORT hipError_t hipEventSynchronize(hipEvent_t event) {
    return as_hip(cudaEventSynchronize(reinterpret_cast<cudaEvent_t>(event)));
}
EXPORT hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
    return as_hip(cudaEventElapsedTime(milliseconds, reinterpret_cast<cudaEvent_t>(start),
                                       reinterpret_cast<cudaEvent_t>(stop)));
}
EXPORT const char* hipGetErrorName(hipError_t error) { return simulator().hipGetErrorName(error); }
EXPORT const char* hipGetErrorString(hipError_t error) { return simulator().hipGetErrorString(error); }
EXPORT hipError_t hipGetLastError() { return as_hip(cudaGetLastError()); }

}  // namespace hip_on_cuda
