// torch/stable_abi.h: the C functions of torch's stable ABI (2.10 and later) that the operators call.
// SPDX-License-Identifier: MIT
//
// Declared here, so that building does not need torch; tests/test_stable_abi.py compiles this file together with torch's
// own headers and fails if they disagree. Sources: torch/csrc/inductor/aoti_torch/c/shim.h,
// torch/csrc/stable/c/shim.h.
#pragma once

#include <cstdint>

extern "C" {

struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
class TorchLibraryOpaque;
using TorchLibraryHandle = TorchLibraryOpaque*;
struct DeviceGuardOpaque;
using DeviceGuardHandle = DeviceGuardOpaque*;

// One argument or result of an operator. Tensor: an owned AtenTensorHandle. Optional: null, or a
// heap-allocated StableIValue that the reader deletes. bool, int64_t, double, dtype (int32_t): the low bytes.
using StableIValue = uint64_t;
using AOTITorchError = int32_t;

int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_device_type_cuda();
int32_t aoti_torch_dtype_bfloat16();
int32_t aoti_torch_dtype_float16();
int32_t aoti_torch_dtype_float32();
int32_t aoti_torch_dtype_int32();
int32_t aoti_torch_dtype_int8();
int32_t aoti_torch_dtype_uint8();
int32_t aoti_torch_dtype_int64();
int32_t aoti_torch_layout_strided();

AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** result);
AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* result);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** result);
AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** result);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* result);
AOTITorchError aoti_torch_get_layout(AtenTensorHandle tensor, int32_t* result);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* result);
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* result);
AOTITorchError aoti_torch_empty_strided(int64_t dimensions, const int64_t* sizes, const int64_t* strides,
                                        int32_t dtype, int32_t device_type, int32_t device_index,
                                        AtenTensorHandle* result);
AOTITorchError aoti_torch_get_storage_offset(AtenTensorHandle tensor, int64_t* result);
AOTITorchError aoti_torch__reinterpret_tensor(AtenTensorHandle self, int64_t dimensions, const int64_t* sizes,
                                              const int64_t* strides, int64_t storage_offset,
                                              AtenTensorHandle* result);
AOTITorchError aoti_torch_copy_(AtenTensorHandle self, AtenTensorHandle source, int32_t non_blocking);
AOTITorchError aoti_torch_zero_(AtenTensorHandle tensor);
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);

AOTITorchError aoti_torch_create_device_guard(int32_t device_index, DeviceGuardHandle* result);
AOTITorchError aoti_torch_delete_device_guard(DeviceGuardHandle guard);

AOTITorchError aoti_torch_library_init_fragment(const char* name_space, const char* file, uint32_t line,
                                                TorchLibraryHandle* result);
AOTITorchError aoti_torch_library_init_impl(const char* name_space, const char* dispatch_key,
                                            const char* file, uint32_t line, TorchLibraryHandle* result);
AOTITorchError aoti_torch_library_def(TorchLibraryHandle library, const char* schema);
AOTITorchError torch_library_impl(TorchLibraryHandle library, const char* name,
                                  void (*function)(StableIValue*, uint64_t, uint64_t),
                                  uint64_t built_for_version);
}

namespace hipkittens::torch_binding {

// Conversions follow the rules of this version in every later torch.
inline constexpr uint64_t stable_abi_version = (uint64_t{2} << 56) | (uint64_t{10} << 48);

// Absent from CPU-only builds of torch, and therefore looked up by name at run time.
using GetCurrentCudaStream = AOTITorchError (*)(int32_t device_index, void** stream);
inline constexpr const char* get_current_cuda_stream_name = "aoti_torch_get_current_cuda_stream";

}  // namespace hipkittens::torch_binding
