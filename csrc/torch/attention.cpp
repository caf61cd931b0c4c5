// torch/attention.cpp: checks the tensors of an attention, plans it and launches it.
// SPDX-License-Identifier: MIT
#include "torch/attention.h"

#include <algorithm>
#include <optional>
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

Tensor contiguous(Tensor tensor, Dtype dtype) {
    int64_t stride = 1;
    for (size_t axis = tensor.sizes().size(); axis-- > 0; stride *= tensor.sizes()[axis])
        if (tensor.sizes()[axis] > 1 && tensor.strides()[axis] != stride) {
            Tensor copy = Tensor::empty(tensor.sizes(), dtype, tensor.device());
            copy.copy_from(tensor);
            return copy;
        }
    return tensor;
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
    if (!std::equal(sk.begin(), sk.end(), sv.begin()))
        fail("attention: k and v need the same shape; " + shapes);
    if (sq[0] != sk[0] || sq[3] != sk[3])
        fail("attention: q, k and v need the same batch and head size; " + shapes);
    if (sk[2] == 0 ? sq[2] != 0 : sq[2] % sk[2] != 0)
        fail("attention: the heads of q must be a multiple of those of k; " + shapes);
    if (!(q.device() == k.device()) || !(q.device() == v.device()))
        fail("attention: q, k and v are on different devices");
}

void launch(const Placement& placement, const attention::Plan& plan,
            const std::vector<runtime::Region>& regions) {
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
        fail(std::string("attention: q is ") + name(dtype) + ", k is " + name(k.dtype("attention: k")) +
             ", v is " + name(v.dtype("attention: v")) + "; they need one dtype");
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

void attention_backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 11 || result_count != 3)
        fail("attention_backward is registered with another schema");
    Arguments arguments(stack, argument_count);
    Tensor grad_out = arguments.tensor();
    std::optional<Tensor> grad_lse = arguments.optional_tensor();
    Tensor q = arguments.tensor();
    Tensor k = arguments.tensor();
    Tensor v = arguments.tensor();
    Tensor out = arguments.tensor();
    Tensor lse = arguments.tensor();
    attention::BackwardProblem problem;
    attention::Problem& shared = problem.shared;
    shared.scale = arguments.number();
    shared.causal = arguments.boolean();
    shared.window_left = arguments.integer();
    shared.window_right = arguments.integer();

    check_shapes(q, k, v);
    const Dtype dtype = q.dtype("attention_backward: q");
    shared.element = element_type(dtype, "q");
    const std::vector<int64_t> sizes(q.sizes().begin(), q.sizes().end());
    const std::vector<int64_t> key_sizes(k.sizes().begin(), k.sizes().end());
    const std::vector<int64_t> lse_sizes = {sizes[0], sizes[2], sizes[1]};
    const auto check_tensor = [&](const Tensor& tensor, const char* who, const std::vector<int64_t>& expected,
                                  Dtype own) {
        const auto given = tensor.sizes();
        if (!std::equal(given.begin(), given.end(), expected.begin(), expected.end()))
            fail("attention_backward: " + shape_text(who, tensor) + "; with " + shape_text("q", q) +
                 " it is wrong");
        if (tensor.dtype(std::string("attention_backward: ") + who) != own)
            fail(std::string("attention_backward: ") + who + " is not " + name(own));
        if (!(tensor.device() == q.device()))
            fail(std::string("attention_backward: ") + who + " is on another device than q");
    };
    check_tensor(k, "k", key_sizes, dtype);
    check_tensor(v, "v", key_sizes, dtype);
    check_tensor(grad_out, "grad_out", sizes, dtype);
    check_tensor(out, "out", sizes, dtype);
    check_tensor(lse, "lse", lse_sizes, Dtype::float32);
    if (grad_lse) check_tensor(*grad_lse, "grad_lse", lse_sizes, Dtype::float32);

    const Placement placement(q.device());
    Tensor grad_q = placement.empty(sizes, dtype);
    Tensor grad_k = placement.empty(key_sizes, dtype);
    Tensor grad_v = placement.empty(key_sizes, dtype);
    if (grad_q.element_count() == 0) {
        grad_k.set_zero();
        grad_v.set_zero();
    } else {
        q = readable(std::move(q), dtype);
        k = readable(std::move(k), dtype);
        v = readable(std::move(v), dtype);
        out = readable(std::move(out), dtype);
        grad_out = readable(std::move(grad_out), dtype);
        lse = contiguous(std::move(lse), Dtype::float32);
        if (grad_lse) grad_lse = contiguous(std::move(*grad_lse), Dtype::float32);
        shared.target = placement.target();
        shared.compute_units = placement.device().compute_units;
        shared.batch = sizes[0];
        shared.n_q = sizes[1];
        shared.n_k = key_sizes[1];
        shared.heads = sizes[2];
        shared.key_heads = key_sizes[2];
        shared.head_dim = sizes[3];
        const std::vector<int64_t> workspace_sizes = {attention::backward_workspace_floats(shared)};
        Tensor workspace = placement.empty(workspace_sizes, Dtype::float32);
        problem.q = layout_of(q);
        problem.k = layout_of(k);
        problem.v = layout_of(v);
        problem.out = layout_of(out);
        problem.grad_out = layout_of(grad_out);
        problem.grad_q = layout_of(grad_q);
        problem.grad_k = layout_of(grad_k);
        problem.grad_v = layout_of(grad_v);
        problem.lse = static_cast<const float*>(lse.data());
        problem.grad_lse = grad_lse ? static_cast<const float*>(grad_lse->data()) : nullptr;
        problem.workspace = static_cast<float*>(workspace.data());
        std::vector<runtime::Region> regions = {
            {q.data(), q.extent_bytes(dtype), "q", false},
            {k.data(), k.extent_bytes(dtype), "k", false},
            {v.data(), v.extent_bytes(dtype), "v", false},
            {out.data(), out.extent_bytes(dtype), "out", false},
            {grad_out.data(), grad_out.extent_bytes(dtype), "grad_out", false},
            {lse.data(), lse.extent_bytes(Dtype::float32), "lse", false},
            {grad_q.data(), grad_q.extent_bytes(dtype), "grad_q", true},
            {grad_k.data(), grad_k.extent_bytes(dtype), "grad_k", true},
            {grad_v.data(), grad_v.extent_bytes(dtype), "grad_v", true},
            {workspace.data(), workspace.extent_bytes(Dtype::float32), "workspace", true}};
        if (grad_lse)
            regions.push_back({grad_lse->data(), grad_lse->extent_bytes(Dtype::float32), "grad_lse", false});
        launch(placement, attention::plan_backward(problem), regions);
    }
    stack[0] = to_result(std::move(grad_q));
    stack[1] = to_result(std::move(grad_k));
    stack[2] = to_result(std::move(grad_v));
}

}  // namespace hipkittens::torch_door
