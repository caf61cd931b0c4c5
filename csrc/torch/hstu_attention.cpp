// torch/hstu_attention.cpp: validates the tensors of an attention without a softmax, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention/plan.h"
#include "torch/attention_tensors.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// Self-attention of packed sequences: q (T, H, D), k (T, H_k, D), v (T, H_k, D_v) -> out (T, H, D_v) contiguous.
// Sequence b has rows cu_seqlens[b] .. cu_seqlens[b + 1] - 1, of which num_targets[b] are targets: int32 on q's device.
constexpr const char* hstu_attention_schema =
    "hstu_attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor? num_targets, SymInt max_seqlen, "
    "float scale, bool causal, int max_attn_len, int contextual_seq_len) -> Tensor";
// The gradients of q, k and v, contiguous.
constexpr const char* hstu_attention_backward_schema =
    "hstu_attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor? "
    "num_targets, SymInt max_seqlen, float scale, bool causal, int max_attn_len, int contextual_seq_len) -> "
    "(Tensor, Tensor, Tensor)";

// The arguments common to both operators, in the order of their schemas.
struct Call {
    const char* where;
    Tensor q, k, v, cu_seqlens;
    std::optional<Tensor> num_targets;
    Dtype dtype;
    attention::PointwiseProblem problem;
    std::vector<int64_t> query_sizes, key_sizes, value_sizes, out_sizes;

    Call(const char* where, Arguments& arguments)
        : where(where),
          q(arguments.tensor()),
          k(arguments.tensor()),
          v(arguments.tensor()),
          cu_seqlens(arguments.tensor()),
          num_targets(arguments.optional_tensor()),
          dtype(q.dtype(where, "q")) {
        attention::Problem& shared = problem.shared;
        shared.n_q = shared.n_k = arguments.integer();
        shared.scale = arguments.number();
        shared.causal = arguments.boolean();
        problem.distance = arguments.integer();
        problem.context = arguments.integer();
        check();
    }
    [[noreturn]] void refuse(const std::string& text) const { fail(std::string(where) + ": " + text); }

    void check() {
        const auto shapes = [&] {
            return shape_text("q", q) + ", " + shape_text("k", k) + ", " + shape_text("v", v);
        };
        if (q.dimensions() != 3 || k.dimensions() != 3 || v.dimensions() != 3)
            refuse("q, k and v need 3 dimensions (rows, heads, head size); " + shapes());
        const auto sq = q.sizes(), sk = k.sizes(), sv = v.sizes();
        if (sq[0] != sk[0] || sk[0] != sv[0] || sk[1] != sv[1] || sq[2] != sk[2])
            refuse("q, k and v need the same rows, k and v the same heads, q and k the same head size; " +
                   shapes());
        if (sk[1] == 0 ? sq[1] != 0 : sq[1] % sk[1] != 0)
            refuse("the heads of q must be a multiple of those of k; " + shapes());
        for (const auto& [tensor, name] : {std::pair{&k, "k"}, std::pair{&v, "v"}}) {
            if (!(tensor->device() == q.device())) refuse(std::string(name) + " is on another device than q");
            if (tensor->dtype(where, name) != dtype) refuse("q, k and v need one dtype");
        }
        if (dtype == Dtype::float32) refuse("q is float32; it must be bfloat16 or float16");
        if (cu_seqlens.dimensions() != 1 || cu_seqlens.sizes()[0] < 1)
            refuse(shape_text("cu_seqlens", cu_seqlens) +
                   "; it needs one dimension and the first row of each sequence");
        check_int_vector(cu_seqlens, "cu_seqlens", cu_seqlens.sizes()[0]);
        if (num_targets) check_int_vector(*num_targets, "num_targets", cu_seqlens.sizes()[0] - 1);
        query_sizes.assign(sq.begin(), sq.end());
        key_sizes.assign(sk.begin(), sk.end());
        value_sizes.assign(sv.begin(), sv.end());
        out_sizes = {sq[0], sq[1], sv[2]};
    }
    void check_int_vector(const Tensor& tensor, const char* who, int64_t count) const {
        if (tensor.dimensions() != 1 || tensor.sizes()[0] != count ||
            tensor.dtype_number() != aoti_torch_dtype_int32() || (count > 1 && tensor.strides()[0] != 1))
            refuse(shape_text(who, tensor) + "; it must be " + std::to_string(count) + " contiguous int32");
        if (!(tensor.device() == q.device())) refuse(std::string(who) + " is on another device than q");
    }

    bool is_empty() const {
        return q.element_count() == 0 || value_sizes.back() == 0 || cu_seqlens.sizes()[0] == 1 ||
               problem.shared.n_q == 0;
    }

    // Afterwards the kernels can read every tensor.
    void describe(const Placement& placement) {
        q = readable(std::move(q), dtype);
        k = readable(std::move(k), dtype);
        v = readable(std::move(v), dtype);
        attention::Problem& shared = problem.shared;
        shared.device = placement.shape();
        shared.element = element_type(dtype);
        shared.batch = cu_seqlens.sizes()[0] - 1;
        shared.heads = query_sizes[1];
        shared.key_heads = key_sizes[1];
        shared.head_dim = query_sizes[2];
        shared.value_dim = value_sizes[2];
        shared.first_q = shared.first_k = static_cast<const int32_t*>(cu_seqlens.data());
        shared.rows_q = shared.rows_k = query_sizes[0];
        if (num_targets) problem.targets = static_cast<const int32_t*>(num_targets->data());
        problem.q = layout_of(q);
        problem.k = layout_of(k);
        problem.v = layout_of(v);
    }

    runtime::Region region(const Tensor& tensor, const char* name, bool written = false) const {
        return {tensor.data(), tensor.extent_bytes(dtype), name, written};
    }
    void launch(const Placement& placement, const attention::Plan& plan,
                std::vector<runtime::Region> regions) const {
        regions.push_back(region(q, "q"));
        regions.push_back(region(k, "k"));
        regions.push_back(region(v, "v"));
        regions.push_back({cu_seqlens.data(), cu_seqlens.extent_bytes(Dtype::int32), "cu_seqlens", false});
        if (num_targets)
            regions.push_back(
                {num_targets->data(), num_targets->extent_bytes(Dtype::int32), "num_targets", false});
        for (const Launch& launch : plan.launches) placement.launch(launch, regions);
    }
};

void forward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 10 || result_count != 1) fail("hstu_attention is registered with another schema");
    Arguments arguments(stack, argument_count);
    Call call("hstu_attention", arguments);
    const Placement placement(call.q.device());
    Tensor out = placement.empty(call.out_sizes, call.dtype);
    if (!call.is_empty()) {
        call.describe(placement);
        call.problem.out = layout_of(out);
        call.launch(placement, attention::plan_pointwise_forward(call.problem),
                    {call.region(out, "out", true)});
    }
    stack[0] = to_result(std::move(out));
}

void backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 11 || result_count != 3)
        fail("hstu_attention_backward is registered with another schema");
    Arguments arguments(stack, argument_count);
    Tensor grad_out = arguments.tensor();
    Call call("hstu_attention_backward", arguments);
    const auto given = grad_out.sizes();
    if (!std::equal(given.begin(), given.end(), call.out_sizes.begin(), call.out_sizes.end()) ||
        grad_out.dtype(call.where, "grad_out") != call.dtype || !(grad_out.device() == call.q.device()))
        call.refuse(shape_text("grad_out", grad_out) +
                    "; it needs the shape of the result, q's dtype and device");
    const Placement placement(call.q.device());
    Tensor grad_q = placement.empty(call.query_sizes, call.dtype);
    Tensor grad_k = placement.empty(call.key_sizes, call.dtype);
    Tensor grad_v = placement.empty(call.value_sizes, call.dtype);
    if (call.is_empty()) {
        for (const Tensor* gradient : {&grad_q, &grad_k, &grad_v}) gradient->set_zero();
    } else {
        call.describe(placement);
        grad_out = readable(std::move(grad_out), call.dtype);
        call.problem.grad_out = layout_of(grad_out);
        call.problem.grad_q = layout_of(grad_q);
        call.problem.grad_k = layout_of(grad_k);
        call.problem.grad_v = layout_of(grad_v);
        call.launch(placement, attention::plan_pointwise_backward(call.problem),
                    {call.region(grad_out, "grad_out"), call.region(grad_q, "grad_q", true),
                     call.region(grad_k, "grad_k", true), call.region(grad_v, "grad_v", true)});
    }
    stack[0] = to_result(std::move(grad_q));
    stack[1] = to_result(std::move(grad_k));
    stack[2] = to_result(std::move(grad_v));
}

const Registration registration{{
    {hstu_attention_schema, &forward},
    {hstu_attention_backward_schema, &backward},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
