// torch/attention.cpp: checks the tensors of an attention, plans it and launches it.
// SPDX-License-Identifier: MIT
#include "torch/attention.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/attention/plan.h"
#include "torch/placement.h"

namespace hipkittens::torch_door {
namespace {

std::string shape_text(const char* name, const Tensor& tensor) {
    std::string text;
    for (const int64_t size : tensor.sizes()) text += (text.empty() ? "" : ", ") + std::to_string(size);
    return std::string(name) + " is (" + text + ")";
}

attention::ElementType element_type(Dtype dtype, const char* name) {
    if (dtype == Dtype::bfloat16) return attention::ElementType::bf16;
    if (dtype == Dtype::float16) return attention::ElementType::f16;
    fail(std::string("attention: ") + name + " is float32; it must be bfloat16 or float16");
}

// The kernels read 16 bytes at a time from rows that begin on 4 bytes.
bool is_readable(const Tensor& tensor) {
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    if (reinterpret_cast<uintptr_t>(tensor.data()) % 4 || (sizes[3] > 1 && strides[3] != 1)) return false;
    for (size_t axis = 0; axis < 3; ++axis)
        if (sizes[axis] > 1 && strides[axis] % 2) return false;
    return true;
}

Tensor readable(Tensor tensor, Dtype dtype) {
    if (tensor.element_count() == 0 || is_readable(tensor)) return tensor;
    Tensor copy = Tensor::empty(tensor.sizes(), dtype, tensor.device());
    copy.copy_from(tensor);
    return copy;
}

attention::TensorLayout layout_of(const Tensor& tensor) {
    const auto strides = tensor.strides();
    return {tensor.data(), strides[0], strides[1], strides[2]};
}

void check_shapes(const Tensor& q, const Tensor& k, const Tensor& v) {
    const std::string shapes = shape_text("q", q) + ", " + shape_text("k", k) + ", " + shape_text("v", v);
    if (q.dimensions() != 4 || k.dimensions() != 4 || v.dimensions() != 4)
        fail("attention: q, k and v need 4 dimensions (batch, rows, heads, head size); " + shapes);
    const auto sq = q.sizes(), sk = k.sizes(), sv = v.sizes();
    if (!std::equal(sk.begin(), sk.end(), sv.begin())) fail("attention: k and v need the same shape; " + shapes);
    if (sq[0] != sk[0] || sq[3] != sk[3])
        fail("attention: q, k and v need the same batch and head size; " + shapes);
    if (sk[2] == 0 ? sq[2] != 0 : sq[2] % sk[2] != 0)
        fail("attention: the heads of q must be a multiple of those of k; " + shapes);
    if (!(q.device() == k.device()) || !(q.device() == v.device()))
        fail("attention: q, k and v are on different devices");
}


void launch(const Placement& placement, const attention::Plan& plan, const std::vector<runtime::Region>& regions) {
    for (const attention::Launch& launch : plan.launches) {
        runtime::LaunchShape shape;
        std::copy_n(launch.grid, 3, shape.grid);
        std::copy_n(launch.block, 3, shape.block);
        placement.launch(launch.kernel, shape, launch.arguments, regions);
    }
}

}  // namespace

void attention_forward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 7 || result_count != 2) fail("attention_forward is registered with another schema");
    Arguments arguments(stack, argument_count);
    Tensor q = arguments.tensor();
    Tensor k = arguments.tensor();
    Tensor v = arguments.tensor();
    const double scale = arguments.number();
    const bool causal = arguments.boolean();
    const int64_t window_left = arguments.integer();
    const int64_t window_right = arguments.integer();

    check_shapes(q, k, v);
    const Dtype dtype = q.dtype("attention: q");
    if (k.dtype("attention: k") != dtype || v.dtype("attention: v") != dtype)
        fail(std::string("attention: q is ") + name(dtype) + ", k is " + name(k.dtype("attention: k")) + ", v is " +
             name(v.dtype("attention: v")) + "; they need one dtype");
    const attention::ElementType element = element_type(dtype, "q");
    const Placement placement(q.device());
    const std::vector<int64_t> sizes(q.sizes().begin(), q.sizes().end());
    const std::vector<int64_t> lse_sizes = {sizes[0], sizes[2], sizes[1]};
    Tensor out = placement.empty(sizes, dtype);
    Tensor lse = placement.empty(lse_sizes, Dtype::float32);
    if (lse.element_count() > 0) {
        q = readable(std::move(q), dtype);
        k = readable(std::move(k), dtype);
        v = readable(std::move(v), dtype);
        attention::ForwardProblem problem;
        problem.shared.target = placement.target();
        problem.shared.compute_units = placement.device().compute_units;
        problem.shared.element = element;
        problem.shared.batch = sizes[0];
        problem.shared.n_q = sizes[1];
        problem.shared.n_k = k.sizes()[1];
        problem.shared.heads = sizes[2];
        problem.shared.key_heads = k.sizes()[2];
        problem.shared.head_dim = sizes[3];
        problem.shared.scale = scale;
        problem.shared.causal = causal;
        problem.shared.window_left = window_left;
        problem.shared.window_right = window_right;
        problem.q = layout_of(q);
        problem.k = layout_of(k);
        problem.v = layout_of(v);
        problem.out = layout_of(out);
        problem.lse = static_cast<float*>(lse.data());
        launch(placement, attention::plan_forward(problem),
               {{q.data(), q.extent_bytes(dtype), "q", false},
                {k.data(), k.extent_bytes(dtype), "k", false},
                {v.data(), v.extent_bytes(dtype), "v", false},
                {out.data(), out.extent_bytes(dtype), "out", true},
                {lse.data(), lse.extent_bytes(Dtype::float32), "lse", true}});
    }
    stack[0] = to_result(std::move(out));
    stack[1] = to_result(std::move(lse));
}

}  // namespace hipkittens::torch_door
