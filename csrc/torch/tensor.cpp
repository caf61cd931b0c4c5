// torch/tensor.cpp: implements torch/tensor.h on the C functions.
// SPDX-License-Identifier: MIT
#include "torch/tensor.h"

#include <dlfcn.h>

#include <bit>
#include <limits>
#include <stdexcept>

namespace hipkittens::torch_binding {

void fail(const std::string& message) { throw std::runtime_error("hipkittens: " + message); }

void check(AOTITorchError status, const char* what) {
    if (status != 0) fail(std::string("torch refused ") + what);
}

const char* name(Dtype dtype) {
    switch (dtype) {
        case Dtype::bfloat16:
            return "bfloat16";
        case Dtype::float16:
            return "float16";
        case Dtype::float32:
            return "float32";
        case Dtype::int32:
            return "int32";
        case Dtype::int64:
            return "int64";
        case Dtype::uint8:
            return "uint8";
    }
    return "?";
}

uint32_t bytes_of(Dtype dtype) {
    switch (dtype) {
        case Dtype::bfloat16:
        case Dtype::float16:
            return 2;
        case Dtype::float32:
        case Dtype::int32:
            return 4;
        case Dtype::uint8:
            return 1;
        case Dtype::int64:
            break;
    }
    return 8;
}

namespace {

int32_t number_in_torch(Dtype dtype) {
    switch (dtype) {
        case Dtype::bfloat16:
            return aoti_torch_dtype_bfloat16();
        case Dtype::float16:
            return aoti_torch_dtype_float16();
        case Dtype::float32:
            return aoti_torch_dtype_float32();
        case Dtype::int32:
            return aoti_torch_dtype_int32();
        case Dtype::uint8:
            return aoti_torch_dtype_uint8();
        case Dtype::int64:
            break;
    }
    return aoti_torch_dtype_int64();
}

}  // namespace

static std::string blamed(std::string_view where, std::string_view argument) {
    std::string text(where);
    if (!argument.empty()) text.append(": ").append(argument);
    return text;
}

Dtype dtype_from_torch(int32_t number, std::string_view where, std::string_view argument) {
    if (number == aoti_torch_dtype_bfloat16()) return Dtype::bfloat16;
    if (number == aoti_torch_dtype_float16()) return Dtype::float16;
    if (number == aoti_torch_dtype_float32()) return Dtype::float32;
    fail(blamed(where, argument) + ": dtype number " + std::to_string(number) +
         " of torch, allowed: bfloat16, float16, float32");
}

Tensor::~Tensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
}

Tensor Tensor::empty(std::span<const int64_t> sizes, Dtype dtype, Device device, bool transposed) {
    std::vector<int64_t> strides(sizes.size());
    int64_t stride = 1;
    for (size_t axis = sizes.size(); axis-- > 0;) {
        const size_t last = sizes.size() - 1,
                     inner = transposed && axis + 1 >= last ? 2 * last - 1 - axis : axis;
        strides[inner] = stride;
        stride *= sizes[inner] > 0 ? sizes[inner] : 1;
    }
    const int32_t number = number_in_torch(dtype);
    AtenTensorHandle handle = nullptr;
    const int32_t type = device.cpu ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda();
    if (aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), number,
                                 type, device.index, &handle) != 0) {
        fail("torch has no " + std::to_string(stride * bytes_of(dtype)) +
             " bytes for a result; free memory, or make the call smaller");
    }
    return Tensor(handle);
}

void* Tensor::data() const {
    void* pointer = nullptr;
    check(aoti_torch_get_data_ptr(handle_, &pointer), "a tensor's address");
    return pointer;
}

int64_t Tensor::dimensions() const {
    int64_t count = 0;
    check(aoti_torch_get_dim(handle_, &count), "a tensor's dimensions");
    return count;
}

std::span<const int64_t> Tensor::sizes() const {
    int64_t* values = nullptr;
    check(aoti_torch_get_sizes(handle_, &values), "a tensor's sizes");
    return {values, static_cast<size_t>(dimensions())};
}

std::span<const int64_t> Tensor::strides() const {
    int64_t* values = nullptr;
    check(aoti_torch_get_strides(handle_, &values), "a tensor's strides");
    return {values, static_cast<size_t>(dimensions())};
}

int64_t Tensor::element_count() const {
    int64_t count = 1;
    for (const int64_t size : sizes()) count *= size;
    return count;
}

bool Tensor::is_contiguous() const {
    const auto size = sizes(), stride = strides();
    int64_t expected = 1;
    for (size_t axis = size.size(); axis-- > 0; expected *= size[axis])
        if (size[axis] > 1 && stride[axis] != expected) return element_count() == 0;
    return true;
}

Dtype Tensor::dtype(std::string_view where, std::string_view argument) const {
    int32_t layout = 0;
    check(aoti_torch_get_layout(handle_, &layout), "a tensor's layout");
    if (layout != aoti_torch_layout_strided())
        fail(blamed(where, argument) + ": a dense tensor is needed, this one is sparse");
    return dtype_from_torch(dtype_number(), where, argument);
}

int32_t Tensor::dtype_number() const {
    int32_t number = 0;
    check(aoti_torch_get_dtype(handle_, &number), "a tensor's dtype");
    return number;
}

Device Tensor::device() const {
    int32_t type = 0, index = 0;
    check(aoti_torch_get_device_type(handle_, &type), "a tensor's device");
    check(aoti_torch_get_device_index(handle_, &index), "a tensor's device");
    return {type == aoti_torch_device_type_cpu(), index};
}

void Tensor::set_zero() const { check(aoti_torch_zero_(handle_), "to set the result to zero"); }

void Tensor::copy_from(const Tensor& source) const {
    check(aoti_torch_copy_(handle_, source.handle_, 0), "to copy a tensor");
}

Tensor Tensor::broadcast_rows(std::span<const int64_t> sizes) const {
    std::vector<int64_t> strides(sizes.size(), 0);
    strides.back() = this->strides()[0];
    int64_t offset = 0;
    check(aoti_torch_get_storage_offset(handle_, &offset), "a tensor's storage offset");
    AtenTensorHandle view = nullptr;
    check(aoti_torch__reinterpret_tensor(handle_, static_cast<int64_t>(sizes.size()), sizes.data(),
                                         strides.data(), offset, &view),
          "to broadcast a vector");
    return Tensor(view);
}

uint64_t Tensor::extent_bytes(Dtype dtype) const {
    if (element_count() == 0) return 0;
    const auto size = sizes(), stride = strides();
    uint64_t last = 0;
    for (size_t axis = 0; axis < size.size(); ++axis) {
        last += static_cast<uint64_t>(size[axis] - 1) * static_cast<uint64_t>(stride[axis]);
    }
    return (last + 1) * bytes_of(dtype);
}

StableIValue Arguments::next() {
    if (position_ == count_) fail("an operator was called with " + std::to_string(count_) + " arguments");
    return stack_[position_++];
}

Arguments::~Arguments() {
    if (guard_ != nullptr) aoti_torch_delete_device_guard(guard_);
}

Tensor Arguments::owned(StableIValue handle) {
    Tensor tensor(reinterpret_cast<AtenTensorHandle>(handle));
    if (guard_ == nullptr) {
        const Device device = tensor.device();
        if (!device.cpu)
            check(aoti_torch_create_device_guard(device.index, &guard_), "to make a GPU current");
    }
    return tensor;
}

Tensor Arguments::tensor() { return owned(next()); }

std::optional<Tensor> Arguments::optional_tensor() {
    auto* box = reinterpret_cast<StableIValue*>(next());
    if (box == nullptr) return std::nullopt;
    const StableIValue value = *box;
    delete box;  // torch allocated it with new; the reader must free it
    return owned(value);
}

bool Arguments::boolean() { return (next() & 0xff) != 0; }

int64_t Arguments::integer() { return static_cast<int64_t>(next()); }

double Arguments::number() { return std::bit_cast<double>(next()); }

float Arguments::upper_bound() {
    const double value = number();
    return value < 0 ? std::numeric_limits<float>::infinity() : static_cast<float>(value);
}

int32_t Arguments::dtype() { return static_cast<int32_t>(next()); }

void* current_stream(Device device) {
    if (device.cpu) return nullptr;
    static const auto function =
        reinterpret_cast<GetCurrentCudaStream>(dlsym(RTLD_DEFAULT, get_current_cuda_stream_name));
    if (function == nullptr)
        fail("this torch has no GPU support (no " + std::string(get_current_cuda_stream_name) + ")");
    void* stream = nullptr;
    check(function(device.index, &stream), "its current stream");
    return stream;
}

}  // namespace hipkittens::torch_binding
