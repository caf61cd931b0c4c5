// torch/attention.cpp: validates the tensors of an attention, plans it and launches it.
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

// q (B, N, H, D), k (B, N_k, H_k, D), v (B, N_k, H_k, D_v) -> out (B, N, H, D_v) contiguous, lse (B, H, N) float32.
// A negative window side is unlimited. seed: two int64 on q's device, given exactly when dropout_p > 0. sinks (H,) and
// alibi_slopes (H,) or (B, H): float32 on q's device. softcap 0: none.
constexpr const char* attention_forward_schema =
    "attention_forward(Tensor q, Tensor k, Tensor v, float scale, bool causal, int window_left, int "
    "window_right, float dropout_p=0., Tensor? seed=None, Tensor? sinks=None, float softcap=0., Tensor? "
    "alibi_slopes=None) -> (Tensor, Tensor)";

// The gradients of q, k, v and sinks (empty without them), contiguous, from the gradients of out and lse. A
// gradient of lse is supported only without sinks, in a separate call.
constexpr const char* attention_backward_schema =
    "attention_backward(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor "
    "lse, float scale, bool causal, int window_left, int window_right, float dropout_p=0., Tensor? "
    "seed=None, Tensor? sinks=None, float softcap=0., Tensor? alibi_slopes=None) -> (Tensor, Tensor, Tensor, "
    "Tensor)";

// Packed sequences: q (T, H, D), k (T_k, H_k, D), v (T_k, H_k, D_v) -> out (T, H, D_v), lse (H, T). Sequence
// b has rows cu_seqlens[b] .. cu_seqlens[b + 1] - 1, int32 on q's device, at most max_seqlen of them.
constexpr const char* attention_varlen_forward_schema =
    "attention_varlen_forward(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
    "SymInt max_seqlen_q, SymInt max_seqlen_k, float scale, bool causal, int window_left, int window_right, "
    "float dropout_p=0., Tensor? seed=None, Tensor? sinks=None, float softcap=0., Tensor? "
    "alibi_slopes=None) -> (Tensor, Tensor)";
constexpr const char* attention_varlen_backward_schema =
    "attention_varlen_backward(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, "
    "Tensor lse, Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, "
    "float scale, bool causal, int window_left, int window_right, float dropout_p=0., Tensor? seed=None, "
    "Tensor? sinks=None, float softcap=0., Tensor? alibi_slopes=None) -> (Tensor, Tensor, Tensor, Tensor)";

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

void launch(const Placement& placement, const attention::Plan& plan,
            const std::vector<runtime::Region>& regions) {
    for (const Launch& launch : plan.launches) placement.launch(launch, regions);
}

// The arguments common to both directions of an operator, in the order of its schema.
struct Call {
    const char* where;
    bool packed;
    Tensor q, k, v;
    std::optional<Tensor> cu_seqlens_q, cu_seqlens_k, seed, sinks, alibi_slopes;
    int64_t max_seqlen_q = 0, max_seqlen_k = 0;
    Dtype dtype;
    attention::Problem problem;
    std::vector<int64_t> query_sizes, key_sizes, value_sizes, out_sizes, lse_sizes;

    Call(const char* where, bool packed, Tensor q, Tensor k, Tensor v)
        : where(where),
          packed(packed),
          q(std::move(q)),
          k(std::move(k)),
          v(std::move(v)),
          dtype(this->q.dtype(where, "q")) {}

    void read_options(Arguments& arguments) {
        if (packed) {
            cu_seqlens_q = arguments.tensor();
            cu_seqlens_k = arguments.tensor();
            max_seqlen_q = arguments.integer();
            max_seqlen_k = arguments.integer();
        }
        problem.scale = arguments.number();
        problem.causal = arguments.boolean();
        problem.window_left = arguments.integer();
        problem.window_right = arguments.integer();
        problem.dropout_p = arguments.number();
        seed = arguments.optional_tensor();
        sinks = arguments.optional_tensor();
        problem.softcap = arguments.number();
        alibi_slopes = arguments.optional_tensor();
        check();
    }
    [[noreturn]] void refuse(const std::string& text) const { fail(std::string(where) + ": " + text); }

    void check_int_vector(const Tensor& tensor, const char* who, int32_t dtype_number, const char* dtype_name,
                          int64_t count) const {
        if (tensor.dimensions() != 1 || tensor.sizes()[0] != count || tensor.dtype_number() != dtype_number ||
            (count > 1 && tensor.strides()[0] != 1))
            refuse(shape_text(who, tensor) + "; it must be " + std::to_string(count) + " contiguous " +
                   dtype_name);
        if (!(tensor.device() == q.device())) refuse(std::string(who) + " is on another device than q");
    }

    // One float32 for each head, or, with `of_sequences`, for each head of each sequence.
    void check_heads(const std::optional<Tensor>& tensor, const char* who, int64_t heads,
                     bool of_sequences) const {
        if (!tensor) return;
        const auto sizes = tensor->sizes(), strides = tensor->strides();
        const int64_t sequences = packed ? cu_seqlens_q->sizes()[0] - 1 : q.sizes()[0];
        const bool each = of_sequences && sizes.size() == 2;
        const bool fits = each ? sizes[0] == sequences && sizes[1] == heads && (heads < 2 || strides[1] == 1)
                               : sizes.size() == 1 && sizes[0] == heads && (heads < 2 || strides[0] == 1);
        if (!fits || tensor->dtype(where, who) != Dtype::float32)
            refuse(shape_text(who, *tensor) + "; it must be contiguous float32, one for each of the " +
                   std::to_string(heads) + " heads" +
                   (of_sequences ? ", or for those of each sequence" : ""));
        if (!(tensor->device() == q.device())) refuse(std::string(who) + " is on another device than q");
    }

    void check() {
        const auto shapes = [&] {
            return shape_text("q", q) + ", " + shape_text("k", k) + ", " + shape_text("v", v);
        };
        const int64_t dimensions = packed ? 3 : 4;
        if (q.dimensions() != dimensions || k.dimensions() != dimensions || v.dimensions() != dimensions)
            refuse(std::string("q, k and v need ") +
                   (packed ? "3 dimensions (rows, heads, head size); "
                           : "4 dimensions (batch, rows, heads, head size); ") +
                   shapes());
        const auto sq = q.sizes(), sk = k.sizes(), sv = v.sizes();
        const size_t rows = packed ? 0 : 1, heads = rows + 1, size = rows + 2;
        if (!std::equal(sk.begin(), sk.end() - 1, sv.begin()))
            refuse("k and v need the same shape but for the head size; " + shapes());
        if (!packed && sq[0] != sk[0]) refuse("q, k and v need the same batch; " + shapes());
        if (sq[size] != sk[size]) refuse("q and k need the same head size; " + shapes());
        if (sk[heads] == 0 ? sq[heads] != 0 : sq[heads] % sk[heads] != 0)
            refuse("the heads of q must be a multiple of those of k; " + shapes());
        if (!(q.device() == k.device()) || !(q.device() == v.device()))
            refuse("q, k and v are on different devices");
        const Dtype of_k = k.dtype(where, "k"), of_v = v.dtype(where, "v");
        if (of_k != dtype || of_v != dtype)
            refuse(std::string("q is ") + name(dtype) + ", k is " + name(of_k) + ", v is " + name(of_v) +
                   "; they need one dtype");
        if (dtype == Dtype::float32) refuse("q is float32; it must be bfloat16 or float16");
        if (seed.has_value() != (problem.dropout_p > 0))
            refuse("a seed is needed exactly when dropout_p > 0");
        if (seed) check_int_vector(*seed, "seed", aoti_torch_dtype_int64(), "int64", 2);
        if (packed) {
            if (cu_seqlens_q->dimensions() != 1 || cu_seqlens_q->sizes()[0] < 1)
                refuse(shape_text("cu_seqlens_q", *cu_seqlens_q) +
                       "; it needs one dimension and the first row of each sequence");
            const int64_t count = cu_seqlens_q->sizes()[0];
            check_int_vector(*cu_seqlens_q, "cu_seqlens_q", aoti_torch_dtype_int32(), "int32", count);
            check_int_vector(*cu_seqlens_k, "cu_seqlens_k", aoti_torch_dtype_int32(), "int32", count);
        }
        query_sizes.assign(sq.begin(), sq.end());
        key_sizes.assign(sk.begin(), sk.end());
        value_sizes.assign(sv.begin(), sv.end());
        out_sizes = query_sizes;
        out_sizes.back() = value_sizes.back();
        check_heads(sinks, "sinks", sq[heads], false);
        check_heads(alibi_slopes, "alibi_slopes", sq[heads], true);
        lse_sizes = packed ? std::vector<int64_t>{sq[1], sq[0]} : std::vector<int64_t>{sq[0], sq[2], sq[1]};
    }

    bool is_empty() const {
        return q.element_count() == 0 || value_sizes.back() == 0 ||
               (packed && (cu_seqlens_q->sizes()[0] == 1 || max_seqlen_q == 0));
    }

    // Afterwards the kernels can read every tensor.
    void describe(const Placement& placement) {
        q = readable(std::move(q), dtype);
        k = readable(std::move(k), dtype);
        v = readable(std::move(v), dtype);
        problem.device = placement.shape();
        problem.element = element_type(dtype);
        problem.heads = query_sizes[packed ? 1 : 2];
        problem.key_heads = key_sizes[packed ? 1 : 2];
        problem.head_dim = query_sizes.back();
        problem.value_dim = value_sizes.back();
        if (packed) {
            problem.batch = cu_seqlens_q->sizes()[0] - 1;
            problem.n_q = max_seqlen_q;
            problem.n_k = max_seqlen_k;
            problem.first_q = static_cast<const int32_t*>(cu_seqlens_q->data());
            problem.first_k = static_cast<const int32_t*>(cu_seqlens_k->data());
            problem.rows_q = query_sizes[0];
            problem.rows_k = key_sizes[0];
        } else {
            problem.batch = query_sizes[0];
            problem.n_q = query_sizes[1];
            problem.n_k = key_sizes[1];
        }
        if (seed) problem.seed = static_cast<const uint64_t*>(seed->data());
        if (sinks) problem.sinks = static_cast<const float*>(sinks->data());
        if (alibi_slopes) {
            problem.slopes = static_cast<const float*>(alibi_slopes->data());
            problem.slopes_of_sequence = alibi_slopes->dimensions() == 2 ? alibi_slopes->strides()[0] : 0;
        }
    }

    std::vector<runtime::Region> regions() const {
        std::vector<runtime::Region> regions = {region(q, "q"), region(k, "k"), region(v, "v")};
        if (packed) {
            regions.push_back(
                {cu_seqlens_q->data(), 4u * static_cast<uint64_t>(problem.batch + 1), "cu_seqlens_q", false});
            regions.push_back(
                {cu_seqlens_k->data(), 4u * static_cast<uint64_t>(problem.batch + 1), "cu_seqlens_k", false});
        }
        if (seed) regions.push_back({seed->data(), 16, "seed", false});
        for (const auto& [tensor, name] :
             {std::pair{&sinks, "sinks"}, std::pair{&alibi_slopes, "alibi_slopes"}})
            if (*tensor)
                regions.push_back({(*tensor)->data(), (*tensor)->extent_bytes(Dtype::float32), name, false});
        return regions;
    }
    runtime::Region region(const Tensor& tensor, const char* name, bool written = false) const {
        return {tensor.data(), tensor.extent_bytes(dtype), name, written};
    }
};

runtime::Region float_region(const Tensor& tensor, const char* name, bool written) {
    return {tensor.data(), tensor.extent_bytes(Dtype::float32), name, written};
}

void forward(const char* where, bool packed, StableIValue* stack, uint64_t argument_count,
             uint64_t result_count) {
    if (argument_count != (packed ? 16 : 12) || result_count != 2)
        fail(std::string(where) + " is registered with another schema");
    Arguments arguments(stack, argument_count);
    Tensor q = arguments.tensor(), k = arguments.tensor(), v = arguments.tensor();
    Call call(where, packed, std::move(q), std::move(k), std::move(v));
    call.read_options(arguments);

    const Placement placement(call.q.device());
    Tensor out = placement.empty(call.out_sizes, call.dtype);
    Tensor lse = placement.empty(call.lse_sizes, Dtype::float32);
    if (!call.is_empty()) {
        call.describe(placement);
        attention::ForwardProblem problem;
        problem.shared = call.problem;
        problem.q = layout_of(call.q);
        problem.k = layout_of(call.k);
        problem.v = layout_of(call.v);
        problem.out = layout_of(out);
        problem.lse = static_cast<float*>(lse.data());
        const attention::ForwardChoice choice = attention::choose_forward(problem);
        std::vector<runtime::Region> regions = call.regions();
        std::optional<Tensor> workspace;
        if (const int64_t floats = attention::forward_workspace_floats(problem.shared, choice)) {
            workspace = placement.empty({&floats, 1}, Dtype::float32);
            problem.workspace = static_cast<float*>(workspace->data());
            regions.push_back(float_region(*workspace, "workspace", true));
        }
        regions.push_back(call.region(out, "out", true));
        regions.push_back(float_region(lse, "lse", true));
        launch(placement, attention::plan_forward(problem, choice), regions);
    }
    stack[0] = to_result(std::move(out));
    stack[1] = to_result(std::move(lse));
}

void backward(const char* where, bool packed, StableIValue* stack, uint64_t argument_count,
              uint64_t result_count) {
    if (argument_count != (packed ? 20 : 16) || result_count != 4)
        fail(std::string(where) + " is registered with another schema");
    Arguments arguments(stack, argument_count);
    Tensor grad_out = arguments.tensor();
    std::optional<Tensor> grad_lse = arguments.optional_tensor();
    Tensor q = arguments.tensor(), k = arguments.tensor(), v = arguments.tensor();
    Tensor out = arguments.tensor(), lse = arguments.tensor();
    Call call(where, packed, std::move(q), std::move(k), std::move(v));
    call.read_options(arguments);
    const Dtype dtype = call.dtype;
    const auto check_tensor = [&](const Tensor& tensor, const char* who, const std::vector<int64_t>& expected,
                                  Dtype own) {
        const auto given = tensor.sizes();
        if (!std::equal(given.begin(), given.end(), expected.begin(), expected.end()))
            call.refuse(shape_text(who, tensor) + "; with " + shape_text("q", call.q) + " it is wrong");
        if (tensor.dtype(where, who) != own) call.refuse(std::string(who) + " is not " + name(own));
        if (!(tensor.device() == call.q.device()))
            call.refuse(std::string(who) + " is on another device than q");
    };
    check_tensor(grad_out, "grad_out", call.out_sizes, dtype);
    check_tensor(out, "out", call.out_sizes, dtype);
    check_tensor(lse, "lse", call.lse_sizes, Dtype::float32);
    if (grad_lse) check_tensor(*grad_lse, "grad_lse", call.lse_sizes, Dtype::float32);

    const Placement placement(call.q.device());
    Tensor grad_q = placement.empty(call.query_sizes, dtype);
    Tensor grad_k = placement.empty(call.key_sizes, dtype);
    Tensor grad_v = placement.empty(call.value_sizes, dtype);
    const int64_t sinks = call.sinks ? call.sinks->sizes()[0] : 0;
    Tensor grad_sinks = placement.empty({&sinks, 1}, Dtype::float32);
    if (call.is_empty()) {
        grad_q.set_zero();
        grad_k.set_zero();
        grad_v.set_zero();
        grad_sinks.set_zero();
    } else {
        call.describe(placement);
        out = readable(std::move(out), dtype);
        grad_out = readable(std::move(grad_out), dtype);
        lse = contiguous(std::move(lse), Dtype::float32);
        if (grad_lse) grad_lse = contiguous(std::move(*grad_lse), Dtype::float32);
        const attention::BackwardChoice choice = attention::choose_backward(call.problem);
        const std::vector<int64_t> workspace_sizes = {
            attention::backward_workspace_floats(call.problem, choice)};
        Tensor workspace = placement.empty(workspace_sizes, Dtype::float32);
        attention::BackwardProblem problem;
        problem.shared = call.problem;
        problem.q = layout_of(call.q);
        problem.k = layout_of(call.k);
        problem.v = layout_of(call.v);
        problem.out = layout_of(out);
        problem.grad_out = layout_of(grad_out);
        problem.grad_q = layout_of(grad_q);
        problem.grad_k = layout_of(grad_k);
        problem.grad_v = layout_of(grad_v);
        problem.lse = static_cast<const float*>(lse.data());
        problem.grad_lse = grad_lse ? static_cast<const float*>(grad_lse->data()) : nullptr;
        problem.workspace = static_cast<float*>(workspace.data());
        if (call.sinks) problem.grad_sinks = static_cast<float*>(grad_sinks.data());
        std::vector<runtime::Region> regions = call.regions();
        if (call.sinks) regions.push_back(float_region(grad_sinks, "grad_sinks", true));
        regions.push_back(call.region(out, "out"));
        regions.push_back(call.region(grad_out, "grad_out"));
        regions.push_back(call.region(grad_q, "grad_q", true));
        regions.push_back(call.region(grad_k, "grad_k", true));
        regions.push_back(call.region(grad_v, "grad_v", true));
        regions.push_back(float_region(lse, "lse", false));
        regions.push_back(float_region(workspace, "workspace", true));
        if (grad_lse) regions.push_back(float_region(*grad_lse, "grad_lse", false));
        launch(placement, attention::plan_backward(problem, choice), regions);
    }
    stack[0] = to_result(std::move(grad_q));
    stack[1] = to_result(std::move(grad_k));
    stack[2] = to_result(std::move(grad_v));
    stack[3] = to_result(std::move(grad_sinks));
}

void attention_forward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    forward("attention_forward", false, stack, argument_count, result_count);
}
void attention_backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    backward("attention_backward", false, stack, argument_count, result_count);
}
void attention_varlen_forward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    forward("attention_varlen_forward", true, stack, argument_count, result_count);
}
void attention_varlen_backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    backward("attention_varlen_backward", true, stack, argument_count, result_count);
}

const Registration registration{{
    {attention_forward_schema, &attention_forward},
    {attention_backward_schema, &attention_backward},
    {attention_varlen_forward_schema, &attention_varlen_forward},
    {attention_varlen_backward_schema, &attention_varlen_backward},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
