// torch/tensor.h: an owned tensor of torch's stable ABI, with the properties that a launch needs.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch/stable_abi.h"

namespace hipkittens::torch_binding {

// Elements of operands are floats; results may be integers or one-byte quantized values.
enum class Dtype { bfloat16, float16, float32, int32, int64, uint8 };

const char* name(Dtype dtype);
uint32_t bytes_of(Dtype dtype);
// Accepts floating-point dtypes. Throws for a torch dtype number not listed above; `where` and `argument`
// name the culprit: "gemm: out_dtype", or in two parts.
Dtype dtype_from_torch(int32_t number, std::string_view where, std::string_view argument = {});

struct Device {
    bool cpu;
    int32_t index;
    bool operator==(const Device&) const = default;
};

class Tensor {
  public:
    explicit Tensor(AtenTensorHandle owned) : handle_(owned) {}
    Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Tensor& operator=(Tensor&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Tensor();

    // Contiguous; with `transposed` the columns of the last two dimensions are contiguous instead of the
    // rows.
    static Tensor empty(std::span<const int64_t> sizes, Dtype dtype, Device device, bool transposed = false);

    void* data() const;
    std::span<const int64_t> sizes() const;
    std::span<const int64_t> strides() const;
    int64_t dimensions() const;
    int64_t element_count() const;
    bool is_contiguous() const;
    Dtype dtype(std::string_view where, std::string_view argument = {}) const;  // as dtype_from_torch
    int32_t dtype_number() const;  // torch's own number, also for dtypes not in Dtype
    Device device() const;
    void set_zero() const;
    void copy_from(const Tensor& source) const;  // converts; same sizes
    Tensor broadcast_rows(
        std::span<const int64_t> sizes) const;  // a vector seen as every row of a tensor of `sizes`
    AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

    // Bytes from data() to the end of the last element: what a kernel may touch.
    uint64_t extent_bytes(Dtype dtype) const;

  private:
    AtenTensorHandle handle_;
};

// Reads the arguments of a boxed operator call from left to right, taking ownership of what they own. From the first GPU tensor
// on, for the lifetime of this object, that GPU is torch's current one: the dispatcher sets it only for torch's own operators.
class Arguments {
  public:
    Arguments(StableIValue* stack, uint64_t count) : stack_(stack), count_(count) {}
    ~Arguments();
    Arguments(const Arguments&) = delete;

    Tensor tensor();
    std::optional<Tensor> optional_tensor();
    bool boolean();
    int64_t integer();
    double number();
    // A number, or infinity for negative values: an AOTInductor package cannot contain an infinite argument.
    float upper_bound();
    int32_t dtype();

  private:
    StableIValue next();
    Tensor owned(StableIValue handle);

    StableIValue* stack_;
    uint64_t count_;
    uint64_t position_ = 0;
    DeviceGuardHandle guard_ = nullptr;
};

inline StableIValue to_result(Tensor tensor) { return reinterpret_cast<StableIValue>(tensor.release()); }

// The stream on which torch queues work, for a GPU tensor.
void* current_stream(Device device);

// Throws std::runtime_error, which torch turns into a RuntimeError.
[[noreturn]] void fail(const std::string& message);
void check(AOTITorchError status, const char* what);

}  // namespace hipkittens::torch_binding
