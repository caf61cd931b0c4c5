// torch/norm_operands.h: checks of the operands that norms have besides x.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "kernels/norm/arguments.h"
#include "runtime/launch.h"
#include "torch/row_view.h"
#include "torch/tensor.h"

namespace hipkittens::torch_binding {

// Vectors of a row's length, all of one dtype.
struct NormParameters {
    std::optional<Tensor> weight, bias, x_bias;
    Dtype dtype = Dtype::float32;
    bool aligned = true;
    std::vector<runtime::Region> regions;

    void take(const char* name, std::optional<Tensor>& held, const std::string& where, const Tensor& x) {
        if (!held) return;
        const int64_t cols = x.sizes().back();
        const Dtype own = held->dtype(where + name);
        if (held->dimensions() != 1 || held->sizes()[0] != cols)
            fail(where + name + " needs the shape (" + std::to_string(cols) + ")");
        if (!(held->device() == x.device())) fail(where + name + " is on another device than x");
        if (!regions.empty() && own != dtype) fail(where + "weight and bias have different dtypes");
        if (cols > 1 && held->strides()[0] != 1) held = contiguous_copy(std::move(*held), own);
        dtype = own;
        aligned &= reinterpret_cast<uintptr_t>(held->data()) % 4 == 0;
        regions.push_back({held->data(), held->extent_bytes(own), name, false});
    }
};

inline void check_like(const Tensor& tensor, const Tensor& x, Dtype dtype, const std::string& who) {
    const auto a = tensor.sizes(), b = x.sizes();
    if (!std::equal(a.begin(), a.end(), b.begin(), b.end()))
        fail(who + " has another shape than its partner");
    if (tensor.dtype(who) != dtype)
        fail(who + " is " + name(tensor.dtype(who)) + " and its partner " + name(dtype));
    if (!(tensor.device() == x.device())) fail(who + " is on another device than its partner");
}

inline norm::Dropout dropout_of(double p, const std::optional<Tensor>& seed, const std::string& where) {
    if (!(p >= 0 && p < 1)) fail(where + "dropout_p is " + std::to_string(p) + "; 0 <= p < 1 is allowed");
    if ((p > 0) != seed.has_value()) fail(where + "a seed is needed exactly when dropout_p > 0");
    if (!seed) return {nullptr, 0, 1};
    if (seed->dimensions() != 1 || seed->sizes()[0] != 2 || seed->dtype_number() != aoti_torch_dtype_int64())
        fail(where + "seed needs to be two int64");
    return {static_cast<const uint64_t*>(seed->data()),
            static_cast<uint32_t>(std::min(p * 0x1p32, 0x1p32 - 1)), static_cast<float>(1 / (1 - p))};
}

}  // namespace hipkittens::torch_binding
