// torch/attention_quantized.cpp: validates the tensors of attention with quantized operands, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/attention/plan_quantized.h"
#include "torch/attention_tensors.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// int8 q (B, N, H, D), k (B, N_k, H_k, D); v (B, H_k, D_v, M), channel-major bytes of e4m3, M at least N_k
// and a multiple of 16; float32 q_scale (B, H, blocks of query_block queries), k_scale (B, H_k, blocks of
// key_block keys), v_scale (B, H_k, D_v) -> out (B, N, H, D_v), lse (B, H, N) float32, both contiguous.
constexpr const char* attention_quantized_schema =
    "attention_quantized(Tensor q, Tensor k, Tensor v, Tensor q_scale, Tensor k_scale, Tensor v_scale, int "
    "query_block, int key_block, bool causal, int window_left, int window_right, ScalarType out_dtype) -> "
    "(Tensor, Tensor)";

const std::string where = "attention_quantized: ";

void check_codes(const Tensor& tensor, const char* name, int32_t dtype) {
    if (tensor.dimensions() != 4 || tensor.dtype_number() != dtype)
        fail(where + shape_text(name, tensor) + "; it needs 4 dimensions, and to be " +
             (dtype == aoti_torch_dtype_int8() ? "int8" : "uint8"));
}

const float* scales(const Tensor& tensor, const char* name, const Tensor& q,
                    const std::vector<int64_t>& sizes) {
    const auto given = tensor.sizes();
    if (tensor.dtype_number() != aoti_torch_dtype_float32() || !tensor.is_contiguous() ||
        !std::equal(given.begin(), given.end(), sizes.begin(), sizes.end()) ||
        !(tensor.device() == q.device())) {
        std::string wanted;
        for (const int64_t size : sizes) wanted += (wanted.empty() ? "" : ", ") + std::to_string(size);
        fail(where + shape_text(name, tensor) + "; it must be contiguous float32 (" + wanted +
             ") on the device of q");
    }
    return static_cast<const float*>(tensor.data());
}

void attention_quantized(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 12 || result_count != 2)
        fail("attention_quantized is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor q = given.tensor(), k = given.tensor(), v = given.tensor();
    const Tensor q_scale = given.tensor(), k_scale = given.tensor(), v_scale = given.tensor();
    attention::QuantizedProblem problem;
    attention::Problem& shared = problem.shared;
    problem.query_block = given.integer();
    problem.key_block = given.integer();
    shared.causal = given.boolean();
    shared.window_left = given.integer();
    shared.window_right = given.integer();
    const Dtype out_dtype = dtype_from_torch(given.dtype(), where + "out_dtype");
    if (out_dtype == Dtype::float32) fail(where + "out_dtype is float32; it must be bfloat16 or float16");

    check_codes(q, "q", aoti_torch_dtype_int8());
    check_codes(k, "k", aoti_torch_dtype_int8());
    check_codes(v, "v", aoti_torch_dtype_uint8());
    const auto sq = q.sizes(), sk = k.sizes(), sv = v.sizes();
    if (sq[0] != sk[0] || sk[0] != sv[0] || sk[2] != sv[1] || sq[3] != sk[3] ||
        (sk[2] == 0 ? sq[2] != 0 : sq[2] % sk[2] != 0))
        fail(where + "sizes do not fit together; " + shape_text("q", q) + ", " + shape_text("k", k) + ", " +
             shape_text("v", v));
    if (!(k.device() == q.device()) || !(v.device() == q.device()))
        fail(where + "q, k and v are on different devices");
    if (problem.query_block < 1 || problem.key_block < 1)
        fail(where + "query_block and key_block need to be 1 or more");
    shared.batch = sq[0];
    shared.n_q = sq[1];
    shared.heads = sq[2];
    shared.head_dim = sq[3];
    shared.n_k = sk[1];
    shared.key_heads = sk[2];
    shared.value_dim = sv[2];
    shared.scale = 1;
    shared.element = element_type(out_dtype);
    problem.value_columns = sv[3];
    using attention::blocks_of;
    problem.q_scale = scales(q_scale, "q_scale", q,
                             {shared.batch, shared.heads, blocks_of(shared.n_q, problem.query_block)});
    problem.k_scale = scales(k_scale, "k_scale", q,
                             {shared.batch, shared.key_heads, blocks_of(shared.n_k, problem.key_block)});
    problem.v_scale = scales(v_scale, "v_scale", q, {shared.batch, shared.key_heads, shared.value_dim});

    const Placement placement(q.device());
    const int64_t out_sizes[] = {shared.batch, shared.n_q, shared.heads, shared.value_dim};
    const int64_t lse_sizes[] = {shared.batch, shared.heads, shared.n_q};
    Tensor out = placement.empty(out_sizes, out_dtype), lse = placement.empty(lse_sizes, Dtype::float32);
    if (out.element_count() > 0) {
        // Treated as bytes, whatever their format.
        q = readable(std::move(q), Dtype::uint8);
        k = readable(std::move(k), Dtype::uint8);
        v = readable(std::move(v), Dtype::uint8);
        shared.device = placement.shape();
        problem.q = layout_of(q);
        problem.k = layout_of(k);
        const auto strides = v.strides();
        problem.v = {v.data(), strides[0], strides[2], strides[1]};
        problem.out = layout_of(out);
        problem.lse = static_cast<float*>(lse.data());
        const auto region = [](const Tensor& tensor, Dtype dtype, const char* name, bool written = false) {
            return runtime::Region{tensor.data(), tensor.extent_bytes(dtype), name, written};
        };
        const std::vector<runtime::Region> regions = {region(q, Dtype::uint8, "q"),
                                                      region(k, Dtype::uint8, "k"),
                                                      region(v, Dtype::uint8, "v"),
                                                      region(q_scale, Dtype::float32, "q_scale"),
                                                      region(k_scale, Dtype::float32, "k_scale"),
                                                      region(v_scale, Dtype::float32, "v_scale"),
                                                      region(out, out_dtype, "out", true),
                                                      region(lse, Dtype::float32, "lse", true)};
        placement.launch(attention::plan_quantized_forward(problem), regions);
    }
    stack[0] = to_result(std::move(out));
    stack[1] = to_result(std::move(lse));
}

const Registration registration{{
    {attention_quantized_schema, &attention_quantized},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
