// torch/paged_attention.cpp: checks the tensors of attention to a cache in pages, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "kernels/paged_attention/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {
namespace {

// q (T, H, D), caches (blocks, block size, H_k, D), or with heads_first (blocks, H_k, block size, D) -> out (T, H, D), lse (H, T)
// float32. block_table int32 (B, blocks of a sequence), seqused_k int32 (B,), cu_seqlens_q int32 (B + 1,), or none for max_seqlen_q
// tokens of each sequence. alibi_slopes float32 (H,) or (B, H), sinks float32 (H,). num_splits 0: any.
#define PAGED_ARGUMENTS                                                                                      \
    "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor seqused_k, Tensor? cu_seqlens_q, " \
    "Tensor? alibi_slopes, Tensor? sinks, SymInt max_seqlen_q, bool heads_first, float scale, bool causal, " \
    "int window_left, int window_right, float softcap, int num_splits"
constexpr const char* attention_paged_schema = "attention_paged(" PAGED_ARGUMENTS ") -> (Tensor, Tensor)";
// Writes the first result, and returns the second.
constexpr const char* attention_paged_into_schema =
    "attention_paged_into(Tensor(a!) out, " PAGED_ARGUMENTS ") -> Tensor";

using paged_attention::PagedArguments;
using paged_attention::PagedTensor;

const std::string where = "attention_paged: ";

class Call {
  public:
    explicit Call(Arguments& given)
        : q_(given.tensor()),
          k_(given.tensor()),
          v_(given.tensor()),
          table_(given.tensor()),
          lengths_(given.tensor()),
          ends_(given.optional_tensor()),
          slopes_(given.optional_tensor()),
          sinks_(given.optional_tensor()),
          dtype_(q_.dtype(where + "q")) {
        problem_.most_queries = given.integer();
        heads_first_ = given.boolean();
        arguments_.scale = static_cast<float>(given.number());
        const bool causal = given.boolean();
        problem_.left = given.integer();
        problem_.right = given.integer();
        if (causal && problem_.right != 0) problem_.right = 0;
        arguments_.softcap = static_cast<float>(given.number());
        problem_.num_splits = given.integer();
        check();
    }

    const Tensor& q() const { return q_; }
    Dtype dtype() const { return dtype_; }
    // Writes `out`, and returns the LSE.
    Tensor run(const Placement& placement, const Tensor& out) {
        problem_.device = placement.shape();
        Tensor lse = placement.empty(std::array<int64_t, 2>{problem_.heads, problem_.tokens}, Dtype::float32);
        if (problem_.tokens == 0 || problem_.sequences == 0 || problem_.most_queries == 0) return lse;
        const paged_attention::Choice choice = paged_attention::choose(problem_);
        arguments_.out = out.data();
        arguments_.out_token_bytes = stride_bytes(out, 0);
        arguments_.out_head_bytes = stride_bytes(out, 1);
        arguments_.lse = static_cast<float*>(lse.data());
        std::vector<runtime::Region> regions = {read(q_, dtype_, "q"),
                                                read(k_, dtype_, "k_cache"),
                                                read(v_, dtype_, "v_cache"),
                                                read(table_, Dtype::int32, "block_table"),
                                                read(lengths_, Dtype::int32, "seqused_k"),
                                                {out.data(), out.extent_bytes(dtype_), "out", true},
                                                {lse.data(), lse.extent_bytes(Dtype::float32), "lse", true}};
        if (ends_) regions.push_back(read(*ends_, Dtype::int32, "cu_seqlens_q"));
        if (slopes_) regions.push_back(read(*slopes_, Dtype::float32, "alibi_slopes"));
        if (sinks_) regions.push_back(read(*sinks_, Dtype::float32, "sinks"));
        std::optional<Tensor> partial_out, partial_lse;
        if (choice.splits > 1) {
            const std::array<int64_t, 4> sizes = {choice.splits, problem_.tokens, problem_.heads,
                                                  problem_.head_dim};
            partial_out = placement.empty(sizes, Dtype::float32);
            partial_lse = placement.empty(std::span(sizes).first(3), Dtype::float32);
            arguments_.partial_out = static_cast<float*>(partial_out->data());
            arguments_.partial_lse = static_cast<float*>(partial_lse->data());
            for (const Tensor* partial : {&*partial_out, &*partial_lse})
                regions.push_back(
                    {partial->data(), partial->extent_bytes(Dtype::float32), "workspace", true});
        }
        for (const Launch& launch : paged_attention::plan(problem_, choice, arguments_))
            placement.launch(launch, regions);
        return lse;
    }

    // Kernels access 16 bytes at a time, of rows that begin on 4 bytes.
    void check_rows(const Tensor& tensor, const char* name) const {
        const auto sizes = tensor.sizes(), strides = tensor.strides();
        const size_t last = sizes.size() - 1;
        bool readable =
            reinterpret_cast<uintptr_t>(tensor.data()) % 4 == 0 && (sizes[last] <= 1 || strides[last] == 1);
        for (size_t axis = 0; axis < last; ++axis)
            readable = readable && (sizes[axis] <= 1 || strides[axis] % 2 == 0);
        if (tensor.element_count() > 0 && !readable)
            fail(
                where + name +
                " needs unit stride along its last dimension, other strides even, and its rows to begin on 4 "
                "bytes");
    }

  private:
    static runtime::Region read(const Tensor& tensor, Dtype dtype, const char* name) {
        return {tensor.data(), tensor.extent_bytes(dtype), name, false};
    }
    int64_t stride_bytes(const Tensor& tensor, size_t axis) const {
        return tensor.strides()[axis] * bytes_of(dtype_);
    }

    void check() {
        if (q_.dimensions() != 3 || k_.dimensions() != 4 || v_.dimensions() != 4 || table_.dimensions() != 2)
            fail(where + "q needs three dimensions, k_cache and v_cache four, block_table two");
        if (dtype_ == Dtype::float32 || k_.dtype(where + "k_cache") != dtype_ ||
            v_.dtype(where + "v_cache") != dtype_)
            fail(where + "q, k_cache and v_cache need to be all bfloat16 or all float16");
        const size_t heads = heads_first_ ? 1 : 2, slots = heads_first_ ? 2 : 1;
        const auto size = k_.sizes();
        problem_.element = element_type(dtype_);
        problem_.tokens = q_.sizes()[0];
        problem_.heads = q_.sizes()[1];
        problem_.head_dim = q_.sizes()[2];
        problem_.key_heads = size[heads];
        problem_.page = size[slots];
        problem_.sequences = table_.sizes()[0];
        problem_.most_pages = table_.sizes()[1];
        for (size_t axis = 0; axis < 4; ++axis)
            if (v_.sizes()[axis] != size[axis]) fail(where + "k_cache and v_cache need one shape");
        if (size[3] != problem_.head_dim || problem_.key_heads < 1 || problem_.heads < 1 ||
            problem_.heads % problem_.key_heads)
            fail(where + "heads of q and of the caches do not fit together");
        if (problem_.page < 1 || problem_.page > INT32_MAX || problem_.most_queries < 0 ||
            problem_.most_queries > INT32_MAX / problem_.heads || problem_.num_splits < 0 ||
            problem_.num_splits > paged_attention::most_splits)
            fail(where + "the page size, max_seqlen_q or num_splits is out of range");
        if (!std::isfinite(arguments_.scale) || !(arguments_.softcap >= 0))
            fail(where + "scale needs to be finite and softcap 0 or more");
        check_rows(q_, "q");
        check_rows(k_, "k_cache");
        check_rows(v_, "v_cache");
        check_numbers(table_, "block_table", aoti_torch_dtype_int32());
        check_numbers(lengths_, "seqused_k", aoti_torch_dtype_int32());
        if (lengths_.dimensions() != 1 || lengths_.sizes()[0] != problem_.sequences)
            fail(where + "seqused_k needs one length for each row of block_table");
        if (ends_) {
            check_numbers(*ends_, "cu_seqlens_q", aoti_torch_dtype_int32());
            if (ends_->dimensions() != 1 || ends_->sizes()[0] != problem_.sequences + 1)
                fail(where + "cu_seqlens_q needs one entry more than block_table has rows");
        } else if (problem_.tokens != problem_.sequences * problem_.most_queries) {
            fail(where + "q needs max_seqlen_q tokens for each row of block_table");
        }
        if (slopes_) {
            check_numbers(*slopes_, "alibi_slopes", aoti_torch_dtype_float32());
            const bool each = slopes_->dimensions() == 2;
            if (slopes_->sizes().back() != problem_.heads ||
                (each && slopes_->sizes()[0] != problem_.sequences))
                fail(where + "alibi_slopes needs one slope for each head, or for each sequence and head");
            arguments_.slopes = static_cast<const float*>(slopes_->data());
            arguments_.slopes_stride = each ? slopes_->strides()[0] : 0;
        }
        if (sinks_) {
            check_numbers(*sinks_, "sinks", aoti_torch_dtype_float32());
            if (sinks_->dimensions() != 1 || sinks_->sizes()[0] != problem_.heads)
                fail(where + "sinks needs one number for each head");
            arguments_.sinks = static_cast<const float*>(sinks_->data());
        }
        arguments_.q = q_.data();
        arguments_.q_token_bytes = stride_bytes(q_, 0);
        arguments_.q_head_bytes = stride_bytes(q_, 1);
        arguments_.k = cache_of(k_, heads, slots);
        arguments_.v = cache_of(v_, heads, slots);
        arguments_.table = static_cast<const int32_t*>(table_.data());
        arguments_.table_stride = table_.strides()[0];
        arguments_.sequences.lengths = static_cast<const int32_t*>(lengths_.data());
        arguments_.sequences.ends = ends_ ? static_cast<const int32_t*>(ends_->data()) : nullptr;
    }
    PagedTensor cache_of(const Tensor& cache, size_t heads, size_t slots) const {
        const int64_t slot = stride_bytes(cache, slots);
        if (slot < 0 || slot > INT32_MAX / 8) fail(where + "slots of a cache are 256 MiB or more apart");
        return {cache.data(), stride_bytes(cache, 0), stride_bytes(cache, heads),
                static_cast<uint32_t>(slot)};
    }
    // Rows of numbers beside each other.
    void check_numbers(const Tensor& tensor, const char* name, int32_t dtype) const {
        const size_t last = tensor.sizes().size() - 1;
        if (tensor.dtype_number() != dtype || !(tensor.device() == q_.device()) || tensor.dimensions() < 1 ||
            (tensor.sizes()[last] > 1 && tensor.strides()[last] != 1))
            fail(where + name + " needs to be " + (dtype == aoti_torch_dtype_int32() ? "int32" : "float32") +
                 " with unit stride, on the device of q");
    }

    Tensor q_, k_, v_, table_, lengths_;
    std::optional<Tensor> ends_, slopes_, sinks_;
    Dtype dtype_;
    bool heads_first_ = false;
    paged_attention::Problem problem_{};
    PagedArguments arguments_{};
};

void attention_paged(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 16 || result_count != 2) fail("attention_paged is registered with another schema");
    Arguments given(stack, argument_count);
    Call call(given);
    const Placement placement(call.q().device());
    Tensor out = placement.empty(call.q().sizes(), call.dtype());
    Tensor lse = call.run(placement, out);
    stack[0] = to_result(std::move(out));
    stack[1] = to_result(std::move(lse));
}

void attention_paged_into(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 17 || result_count != 1)
        fail("attention_paged_into is registered with another schema");
    Arguments given(stack, argument_count);
    const Tensor out = given.tensor();
    Call call(given);
    bool fits = out.dimensions() == 3 && out.dtype(where + "out") == call.dtype() &&
                out.device() == call.q().device();
    for (size_t axis = 0; fits && axis < 3; ++axis) fits = out.sizes()[axis] == call.q().sizes()[axis];
    if (!fits) fail(where + "out needs the shape, dtype and device of q");
    call.check_rows(out, "out");
    stack[0] = to_result(call.run(Placement(call.q().device()), out));
}

const Registration registration{{
    {attention_paged_schema, &attention_paged},
    {attention_paged_into_schema, &attention_paged_into},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
