// hip/hip_abi.h: the types and constants of the HIP driver API, as its shared library defines them.
// SPDX-License-Identifier: MIT
//
// Facts: the HIP runtime API reference of ROCm 6 and 7 (rocm.docs.amd.com/projects/HIP). The names are HIP's
// own; they are in a namespace so that a program may include HIP's header too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hipkittens::hip {

enum hipError_t : int {
#define HIP_ERROR(name, value, text) name = value,
#include "hip/hip_errors.def"
#undef HIP_ERROR
};

using hipModule_t = struct ihipModule_t*;
using hipFunction_t = struct ihipModuleSymbol_t*;
using hipStream_t = struct ihipStream_t*;
using hipEvent_t = struct ihipEvent_t*;
using hipCtx_t = struct ihipCtx_t*;
using hipGraph_t = struct ihipGraph*;
using hipGraphNode_t = struct hipGraphNode*;
using hipGraphExec_t = struct hipGraphExec*;
using hipMemPool_t = struct ihipMemPoolHandle_t*;
using hipMemGenericAllocationHandle_t = struct ihipMemGenericAllocationHandle*;

struct dim3 {
    uint32_t x, y, z;
};

enum hipStreamCaptureStatus : int {
    hipStreamCaptureStatusNone = 0,
    hipStreamCaptureStatusActive = 1,
    hipStreamCaptureStatusInvalidated = 2,
};

enum hipMemcpyKind : int {
    hipMemcpyHostToHost = 0,
    hipMemcpyHostToDevice = 1,
    hipMemcpyDeviceToHost = 2,
    hipMemcpyDeviceToDevice = 3,
    hipMemcpyDefault = 4,
};

enum hipDeviceAttribute_t : int {
    hipDeviceAttributeEccEnabled = 0,
    hipDeviceAttributeAsyncEngineCount = 2,
    hipDeviceAttributeCanMapHostMemory = 3,
    hipDeviceAttributeCanUseHostPointerForRegisteredMem = 4,
    hipDeviceAttributeClockRate = 5,  // kHz
    hipDeviceAttributeConcurrentKernels = 8,
    hipDeviceAttributeConcurrentManagedAccess = 9,
    hipDeviceAttributeCooperativeLaunch = 10,
    hipDeviceAttributeDirectManagedMemAccessFromHost = 13,
    hipDeviceAttributeHostNativeAtomicSupported = 15,
    hipDeviceAttributeIntegrated = 16,
    hipDeviceAttributeL2CacheSize = 19,
    hipDeviceAttributeComputeCapabilityMajor = 23,
    hipDeviceAttributeManagedMemory = 24,
    hipDeviceAttributeMaxBlocksPerMultiProcessor = 25,
    hipDeviceAttributeMaxBlockDimX = 26,
    hipDeviceAttributeMaxBlockDimY = 27,
    hipDeviceAttributeMaxBlockDimZ = 28,
    hipDeviceAttributeMaxGridDimX = 29,
    hipDeviceAttributeMaxGridDimY = 30,
    hipDeviceAttributeMaxGridDimZ = 31,
    hipDeviceAttributeMaxThreadsDim = 55,
    hipDeviceAttributeMaxThreadsPerBlock = 56,
    hipDeviceAttributeMaxThreadsPerMultiProcessor = 57,
    hipDeviceAttributeMaxPitch = 58,
    hipDeviceAttributeMemoryBusWidth = 59,   // bits
    hipDeviceAttributeMemoryClockRate = 60,  // kHz
    hipDeviceAttributeComputeCapabilityMinor = 61,
    hipDeviceAttributeMultiprocessorCount = 63,
    hipDeviceAttributeUnused1 = 64,
    hipDeviceAttributePageableMemoryAccess = 65,
    hipDeviceAttributePciBusId = 67,
    hipDeviceAttributePciDeviceId = 68,
    hipDeviceAttributePciDomainId = 69,
    hipDeviceAttributeMaxRegistersPerBlock = 71,
    hipDeviceAttributeMaxRegistersPerMultiprocessor = 72,
    hipDeviceAttributeMaxSharedMemoryPerBlock = 74,
    hipDeviceAttributeSharedMemPerBlockOptin = 75,
    hipDeviceAttributeSharedMemPerMultiprocessor = 76,
    hipDeviceAttributeTextureAlignment = 81,
    hipDeviceAttributeTexturePitchAlignment = 82,
    hipDeviceAttributeTotalConstantMemory = 83,
    hipDeviceAttributeUnifiedAddressing = 85,
    hipDeviceAttributeUnused2 = 86,
    hipDeviceAttributeWarpSize = 87,
    hipDeviceAttributeMemoryPoolsSupported = 88,
    hipDeviceAttributeVirtualMemoryManagementSupported = 89,
    hipDeviceAttributeHostRegisterSupported = 90,
    hipDeviceAttributeCudaCompatibleLast = 91,
    hipDeviceAttributeClockInstructionRate = 10000,  // kHz
    hipDeviceAttributeUnused3 = 10001,
    hipDeviceAttributeMaxSharedMemoryPerMultiprocessor = 10002,
    hipDeviceAttributeUnused4 = 10003,
    hipDeviceAttributeUnused5 = 10004,
    hipDeviceAttributeIsLargeBar = 10011,
    hipDeviceAttributeCanUseStreamWaitValue = 10013,
    hipDeviceAttributePhysicalMultiProcessorCount = 10015,
    hipDeviceAttributeFineGrainSupport = 10016,
    hipDeviceAttributeWallClockRate = 10017,  // kHz
    hipDeviceAttributeNumberOfXccs = 10018,
    hipDeviceAttributeMaxAvailableVgprsPerThread = 10019,
    hipDeviceAttributeAmdSpecificLast = 10020,
};

enum hipFunction_attribute : int {
    HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
    HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
    HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES = 2,
    HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
    HIP_FUNC_ATTRIBUTE_NUM_REGS = 4,
    HIP_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
    HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
};

// The words of hipModuleLaunchKernel's `extra`; each but the end marker is followed by its value.
inline void* const launch_param_buffer_pointer = reinterpret_cast<void*>(1);
inline void* const launch_param_buffer_size = reinterpret_cast<void*>(2);  // value: pointer to size_t
inline void* const launch_param_end = reinterpret_cast<void*>(3);

// The arguments of hipDrvLaunchKernelEx: HIP_LAUNCH_CONFIG and hipLaunchAttribute.
struct LaunchAttribute {
    int id;
    int padding;
    union {
        int cooperative;
        unsigned char bytes[64];
    };
};
struct LaunchConfiguration {
    unsigned int grid[3], block[3], shared_bytes;
    hipStream_t stream;
    const LaunchAttribute* attributes;
    unsigned int attribute_count;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfiguration) == 56);
inline constexpr int launch_attribute_cooperative = 2;

// Graph types.
struct hipKernelNodeParams {
    dim3 block;
    void** extra;
    void* function;  // hipFunction_t, or the host function registered with __hipRegisterFunction
    dim3 grid;
    void** arguments;
    unsigned int shared_bytes;
};
struct hipMemsetParams {
    void* destination;
    unsigned int element_bytes;
    size_t height, pitch;
    unsigned int value;
    size_t width;  // elements
};
// HIP_MEMCPY3D; offsets and widths in bytes, heights in rows.
struct DriverBox {
    size_t x, y, z, level_of_detail;
    int type;  // hipMemoryType
    void *host, *device, *array;
    size_t pitch, height;
};
struct DriverCopy3D {
    DriverBox source, destination;
    size_t width, height, depth;
};
// hipMemcpy3DParms.
struct BoxPart {
    void* array;
    size_t x, y, z;
    void* pointer;
    size_t pitch, width, height;
};
struct Copy3D {
    BoxPart source, destination;
    size_t width, height, depth;
    int kind;
};
struct hipHostNodeParams {
    void (*function)(void*);
    void* data;
};

// hipStreamBatchMemOpParams and hipBatchMemOpNodeParams.
struct MemoryOperation {
    int type;
    void* address;
    uint64_t value;  // if 32-bit, the lower half
    unsigned int flags;
    void* alias;  // not used by AMD
    uint64_t padding;
};
static_assert(sizeof(MemoryOperation) == 48);
inline constexpr int memory_operation_wait_32 = 1, memory_operation_write_32 = 2,
                     memory_operation_wait_64 = 4, memory_operation_write_64 = 5;
struct MemoryOperationsOfNode {
    hipCtx_t context;
    unsigned int count;
    const MemoryOperation* operations;
    unsigned int flags;
};

// hipMemLocation and hipMemcpyAttributes.
struct MemoryLocation {
    int type, id;
};
struct CopyAttributes {
    int source_order;  // hipMemcpySrcAccessOrder: 1 to 3
    MemoryLocation source_hint, destination_hint;
    unsigned int flags;
};

// hipFuncAttributes.
struct FunctionAttributes {
    int binary_version, cache_mode;
    size_t constant_bytes, local_bytes;
    int max_dynamic_shared_bytes, max_threads_per_block, registers, shared_carveout, ptx_version;
    size_t shared_bytes;
};

enum hipMemoryType : int {
    hipMemoryTypeUnregistered = 0,
    hipMemoryTypeHost = 1,
    hipMemoryTypeDevice = 2,
    hipMemoryTypeManaged = 3,
};

// hipPointerAttribute_t of ROCm 6 and later.
struct PointerAttributes {
    int type, device;
    void *device_pointer, *host_pointer;
    int is_managed;
    unsigned int flags;
};

enum hipPointer_attribute : int {
    HIP_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    HIP_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    HIP_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    HIP_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    HIP_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    HIP_POINTER_ATTRIBUTE_MAPPED = 13,
};

// Streams that exist without being created.
inline const hipStream_t stream_legacy = reinterpret_cast<hipStream_t>(1);
inline const hipStream_t stream_per_thread = reinterpret_cast<hipStream_t>(2);

// Offsets at which hipGetDevicePropertiesR0600 stores the members of hipDeviceProp_t (ROCm 6.0 and later)
// used here.
namespace device_properties {
inline constexpr size_t bytes = 1472;
inline constexpr size_t name = 0, total_global_memory = 288, shared_memory_per_block = 296,
                        registers_per_block = 304, warp_size = 308, max_threads_per_block = 320,
                        max_threads_dimensions = 324, max_grid_size = 336, clock_rate = 348, major = 360,
                        minor = 364, multiprocessor_count = 388, can_map_host_memory = 400,
                        concurrent_kernels = 576, unified_addressing = 604, memory_clock_rate = 608,
                        memory_bus_width = 612, l2_cache_size = 616, max_threads_per_multiprocessor = 624,
                        shared_memory_per_multiprocessor = 640, registers_per_multiprocessor = 648,
                        cooperative_launch = 688, host_register_supported = 728, gcn_arch_name = 1160,
                        max_shared_memory_per_multiprocessor = 1416, clock_instruction_rate = 1424;
inline constexpr size_t name_bytes = 256;
}  // namespace device_properties

inline const char* error_name(hipError_t error) {
    switch (error) {
#define HIP_ERROR(name, value, text) \
    case name:                       \
        return #name;
#include "hip/hip_errors.def"
#undef HIP_ERROR
    }
    return "hipErrorUnknown";
}

inline const char* error_text(hipError_t error) {
    switch (error) {
#define HIP_ERROR(name, value, text) \
    case name:                       \
        return text;
#include "hip/hip_errors.def"
#undef HIP_ERROR
    }
    return "unknown error";
}

}  // namespace hipkittens::hip
