// torch/mqa_logits.cpp: validates the tensors of an indexer's logits, plans them and launches them.
// SPDX-License-Identifier: MIT
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "kernels/logits/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {
namespace {

// q (tokens, heads, D), k (keys, D), k_scale (keys,) float32, weights (tokens, heads) float32, start and end
// (tokens,) int32 -> (tokens, keys) float32. 8-bit floats are passed as uint8. clean: keys that a token does
// not see are set to -inf; otherwise they are not written.
constexpr const char* mqa_logits_schema =
    "mqa_logits(Tensor q, Tensor k, Tensor? k_scale, Tensor weights, Tensor start, Tensor end, bool clean) "
    "-> Tensor";
// kv_cache (blocks, block_size, D), or uint8 (blocks, block_size, D + 4), each block of which holds its
// quantized values and then its float32 scales; context_lens (sequences,) or (sequences, tokens per sequence)
// int32, block_table (sequences, blocks per sequence) int32 -> (tokens, max_context_len) float32.
constexpr const char* mqa_logits_paged_schema =
    "mqa_logits_paged(Tensor q, Tensor kv_cache, Tensor weights, Tensor context_lens, Tensor block_table, "
    "SymInt max_context_len, bool "
    "clean) -> Tensor";

class Call {
  public:
    Call(Arguments& given, bool paged)
        : where_(paged ? "mqa_logits_paged: " : "mqa_logits: "),
          q_(given.tensor()),
          k_(given.tensor()),
          scale_(paged ? std::nullopt : given.optional_tensor()),
          weights_(given.tensor()),
          start_(paged ? std::nullopt : std::optional<Tensor>(given.tensor())),
          ends_(given.tensor()),
          table_(paged ? std::optional<Tensor>(given.tensor()) : std::nullopt) {
        if (paged) problem_.keys = given.integer();
        arguments_.clean = given.boolean();
        codes_ = q_.dtype_number() == aoti_torch_dtype_uint8();
        dtype_ = codes_ ? Dtype::uint8 : q_.dtype(where_ + "q");
        if (dtype_ == Dtype::float32 || k_.dtype_number() != q_.dtype_number() ||
            !(k_.device() == q_.device()))
            fail(where_ +
                 "q and keys need one dtype, bfloat16, float16 or uint8 of 8-bit floats, on one device");
        if (q_.dimensions() != 3 || weights_.dimensions() != 2 || weights_.sizes()[0] != q_.sizes()[0] ||
            weights_.sizes()[1] != q_.sizes()[1])
            fail(where_ + "q needs three dimensions, and weights the first two of them");
        problem_.element = codes_ ? ElementType::fp8 : element_type(dtype_);
        problem_.heads = q_.sizes()[1];
        problem_.head_dim = q_.sizes()[2];
        check_rows(q_, "q");
        check_rows(k_, "keys");
        check_numbers(weights_, "weights", aoti_torch_dtype_float32());
        check_numbers(ends_, paged ? "context_lens" : "end", aoti_torch_dtype_int32());
        if (paged)
            take_pages();
        else
            take_keys();
        arguments_.q = q_.data();
        arguments_.q_token_bytes = stride_bytes(q_, 0);
        arguments_.q_head_bytes = stride_bytes(q_, 1);
        arguments_.k = k_.data();
        arguments_.weights = static_cast<const float*>(weights_.data());
        arguments_.weight_token_step = weights_.strides()[0];
        arguments_.weight_head_step = weights_.strides()[1];
        arguments_.ends = static_cast<const int32_t*>(ends_.data());
    }

    Tensor run() {
        const Placement placement(q_.device());
        problem_.device = placement.shape();
        const std::array<int64_t, 2> sizes = {q_.sizes()[0], problem_.keys};
        Tensor out = placement.empty(sizes, Dtype::float32);
        if (sizes[0] == 0 || sizes[1] == 0) return out;
        arguments_.out = static_cast<float*>(out.data());
        arguments_.out_step = sizes[1];
        std::vector<runtime::Region> regions = {read(q_, dtype_, "q"),
                                                read(k_, dtype_, table_ ? "kv_cache" : "k"),
                                                read(weights_, Dtype::float32, "weights"),
                                                read(ends_, Dtype::int32, table_ ? "context_lens" : "end"),
                                                {out.data(), out.extent_bytes(Dtype::float32), "out", true}};
        if (scale_) regions.push_back(read(*scale_, Dtype::float32, "k_scale"));
        if (start_) regions.push_back(read(*start_, Dtype::int32, "start"));
        if (table_) regions.push_back(read(*table_, Dtype::int32, "block_table"));
        placement.launch(logits::plan(problem_, arguments_), regions);
        return out;
    }

  private:
    static runtime::Region read(const Tensor& tensor, Dtype dtype, const char* name) {
        return {tensor.data(), tensor.extent_bytes(dtype), name, false};
    }
    int64_t stride_bytes(const Tensor& tensor, size_t axis) const {
        return tensor.strides()[axis] * bytes_of(dtype_);
    }

    void take_keys() {
        if (k_.dimensions() != 2 || k_.sizes()[1] != problem_.head_dim)
            fail(where_ + "k needs two dimensions, rows as long as those of q");
        check_numbers(*start_, "start", aoti_torch_dtype_int32());
        for (const Tensor* limits : {&*start_, &ends_})
            if (limits->dimensions() != 1 || limits->sizes()[0] != q_.sizes()[0] || limits->strides()[0] != 1)
                fail(where_ + "start and end need a number for each token, next to each other");
        problem_.sequences = 1;
        problem_.queries = q_.sizes()[0];
        problem_.keys = k_.sizes()[0];
        arguments_.slot_bytes = stride_bytes(k_, 0);
        arguments_.starts = static_cast<const int32_t*>(start_->data());
        if (!scale_) return;
        check_numbers(*scale_, "k_scale", aoti_torch_dtype_float32());
        if (scale_->dimensions() != 1 || scale_->sizes()[0] != problem_.keys)
            fail(where_ + "k_scale needs a number for each key");
        arguments_.key_scale = static_cast<const float*>(scale_->data());
        arguments_.key_scale_step = scale_->strides()[0];
    }

    void take_pages() {
        const int64_t size = problem_.head_dim + (codes_ ? 4 : 0);
        if (k_.dimensions() != 3 || k_.sizes()[1] < 1 || k_.sizes()[1] > INT32_MAX || k_.sizes()[2] != size)
            fail(where_ +
                 "kv_cache needs blocks of rows as long as those of q, and 4 bytes more of 8-bit floats");
        problem_.page = k_.sizes()[1];
        // The values and scales of such a block are not at the positions its row strides suggest.
        if (codes_ && problem_.page > 1 && k_.strides()[1] != size)
            fail(where_ + "blocks of kv_cache need to be contiguous");
        check_numbers(*table_, "block_table", aoti_torch_dtype_int32());
        problem_.sequences = ends_.dimensions() > 0 ? ends_.sizes()[0] : 0;
        arguments_.ends_of_sequences = ends_.dimensions() == 1;
        if (ends_.dimensions() < 1 || ends_.dimensions() > 2 || !ends_.is_contiguous() ||
            table_->dimensions() != 2 || table_->sizes()[0] != problem_.sequences ||
            (table_->sizes()[1] > 1 && table_->strides()[1] != 1))
            fail(where_ +
                 "context_lens and block_table need a row for each sequence, of numbers next to each other");
        problem_.queries = problem_.sequences ? q_.sizes()[0] / problem_.sequences : 0;
        if (problem_.queries * problem_.sequences != q_.sizes()[0] ||
            (ends_.dimensions() == 2 && ends_.sizes()[1] != problem_.queries))
            fail(where_ + "q needs as many tokens for each sequence, and context_lens one length or as many");
        problem_.most_pages = table_->sizes()[1];
        if (problem_.keys < 0 || problem_.most_pages > INT32_MAX)
            fail(where_ + "max_context_len or the blocks of a sequence are out of range");
        arguments_.page_bytes = stride_bytes(k_, 0);
        arguments_.slot_bytes = codes_ ? problem_.head_dim : stride_bytes(k_, 1);
        arguments_.table = static_cast<const int32_t*>(table_->data());
        arguments_.table_step = table_->strides()[0];
    }

    // Kernels load 16 bytes at a time from rows that begin on 4 bytes.
    void check_rows(const Tensor& tensor, const char* name) const {
        const auto sizes = tensor.sizes(), strides = tensor.strides();
        const size_t last = sizes.size() - 1;
        bool readable =
            reinterpret_cast<uintptr_t>(tensor.data()) % 4 == 0 && (sizes[last] <= 1 || strides[last] == 1);
        for (size_t axis = 0; axis < last; ++axis)
            readable = readable && (sizes[axis] <= 1 || stride_bytes(tensor, axis) % 4 == 0);
        if (tensor.element_count() > 0 && !readable)
            fail(where_ + name +
                 " need unit stride along the last dimension, and rows that begin on 4 bytes");
    }
    void check_numbers(const Tensor& tensor, const char* name, int32_t dtype) const {
        if (tensor.dtype_number() != dtype || !(tensor.device() == q_.device()))
            fail(where_ + name + " needs to be " + (dtype == aoti_torch_dtype_int32() ? "int32" : "float32") +
                 ", on the device of q");
    }

    std::string where_;
    Tensor q_, k_;
    std::optional<Tensor> scale_;
    Tensor weights_;
    std::optional<Tensor> start_;
    Tensor ends_;
    std::optional<Tensor> table_;
    bool codes_ = false;
    Dtype dtype_ = Dtype::uint8;
    logits::Problem problem_{};
    logits::LogitsArguments arguments_{};
};

template <bool paged>
void compute(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 7 || result_count != 1) fail("mqa_logits is registered with another schema");
    Arguments given(stack, argument_count);
    stack[0] = to_result(Call(given, paged).run());
}

const Registration registration{{
    {mqa_logits_schema, &compute<false>},
    {mqa_logits_paged_schema, &compute<true>},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
