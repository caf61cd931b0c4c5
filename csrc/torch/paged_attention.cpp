// torch/paged_attention.cpp: validates the tensors of attention to a paged cache, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "kernels/paged_attention/plan.h"
#include "torch/element_type.h"
#include "torch/paged_cache.h"
#include "torch/placement.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {
namespace {

// q (T, H, D), caches in one of the layouts of paged_cache.h -> out (T, H, D), lse (H, T) float32.
// block_table int32 (B, blocks of a sequence), or with table_starts, int32 (B,), one row in which the blocks
// of sequence b begin at table_starts[b]. seqused_k int32 (B,), cu_seqlens_q int32 (B + 1,), or absent for
// max_seqlen_q tokens per sequence. alibi_slopes float32 (H,) or (B, H), sinks float32 (H,). uint8 caches
// hold the target's 8-bit floats, multiplied by k_scale and v_scale, as are int8 caches: float32 of one
// element, (H_k,), (B, H_k), or both of shape (blocks, H_k, block size); values are also multiplied by
// value_factor. num_splits 0: any. With plan, int32 (B + 2,), num_splits counts the splits of all sequences
// together: plan holds the tiles per split and the boundaries of each sequence's splits.
#define PAGED_ARGUMENTS                                                                                      \
    "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor? table_starts, Tensor seqused_k, " \
    "Tensor? cu_seqlens_q, Tensor? alibi_slopes, Tensor? sinks, Tensor? k_scale, Tensor? v_scale, "          \
    "Tensor? plan, SymInt max_seqlen_q, int layout, float scale, float value_factor, bool causal, "          \
    "int window_left, int window_right, float softcap, int num_splits"
constexpr const char* attention_paged_schema = "attention_paged(" PAGED_ARGUMENTS ") -> (Tensor, Tensor)";
// Writes the first result and returns the second.
constexpr const char* attention_paged_into_schema =
    "attention_paged_into(Tensor(a!) out, " PAGED_ARGUMENTS ") -> Tensor";

// q (T, H, 576), kv_cache (blocks, block size, 1, 576), or uint8 (blocks, block size, 1, 656) rows with scales
// (kernels/paged_attention/kinds.h), for bfloat16 q and without kv_scale -> out (T, H, 512), lse (H, T).
#define LATENT_ARGUMENTS                                                                        \
    "Tensor q, Tensor kv_cache, Tensor block_table, Tensor? table_starts, Tensor seqused_k, "   \
    "Tensor? cu_seqlens_q, Tensor? sinks, Tensor? kv_scale, SymInt max_seqlen_q, float scale, " \
    "float value_factor, bool causal, int num_splits"
constexpr const char* attention_mla_schema = "attention_mla(" LATENT_ARGUMENTS ") -> (Tensor, Tensor)";
constexpr const char* attention_mla_into_schema =
    "attention_mla_into(Tensor(a!) out, " LATENT_ARGUMENTS ") -> Tensor";

using paged_attention::CacheScaling;
using paged_attention::PagedArguments;
using paged_attention::PagedTensor;

// Separate caches for keys and values, or one cache for both.
enum class Caches { two, latent };

class Call {
  public:
    Call(Arguments& given, Caches caches)
        : where_(caches == Caches::latent ? "attention_mla: " : "attention_paged: "),
          latent_(caches == Caches::latent),
          q_(given.tensor()),
          k_(given.tensor()),
          v_(latent_ ? std::nullopt : std::optional<Tensor>(given.tensor())),
          table_(given.tensor()),
          starts_(given.optional_tensor()),
          lengths_(given.tensor()),
          ends_(given.optional_tensor()),
          dtype_(q_.dtype(where_ + "q")) {
        if (!latent_) slopes_ = given.optional_tensor();
        sinks_ = given.optional_tensor();
        k_scale_ = given.optional_tensor();
        if (!latent_) v_scale_ = given.optional_tensor();
        if (!latent_) plan_ = given.optional_tensor();
        problem_.most_queries = given.integer();
        if (!latent_) layout_ = static_cast<CacheLayout>(given.integer());
        arguments_.scale = static_cast<float>(given.number());
        arguments_.value_factor = static_cast<float>(given.number());
        const bool causal = given.boolean();
        problem_.left = problem_.right = -1;
        if (!latent_) {
            problem_.left = given.integer();
            problem_.right = given.integer();
            arguments_.softcap = static_cast<float>(given.number());
        }
        if (causal) problem_.right = 0;
        problem_.num_splits = given.integer();
        check();
    }

    const Tensor& q() const { return q_; }
    Dtype dtype() const { return dtype_; }
    std::array<int64_t, 3> out_sizes() const { return {problem_.tokens, problem_.heads, problem_.value_dim}; }
    void check_out(const Tensor& out) const {
        bool fits =
            out.dimensions() == 3 && out.dtype(where_ + "out") == dtype_ && out.device() == q_.device();
        const auto sizes = out_sizes();
        for (size_t axis = 0; fits && axis < 3; ++axis) fits = out.sizes()[axis] == sizes[axis];
        if (!fits) fail(where_ + "out needs the shape, dtype and device of a result");
        check_rows(out, "out", 2);
    }
    // Writes `out`, and returns the LSE.
    Tensor run(const Placement& placement, const Tensor& out) {
        problem_.device = placement.shape();
        if (plan_ && problem_.device.batch_invariant)
            fail(where_ +
                 "splits by a plan depend on the batch, which batch_invariant excludes; pass no plan");
        Tensor lse = placement.empty(std::array<int64_t, 2>{problem_.heads, problem_.tokens}, Dtype::float32);
        if (problem_.tokens == 0 || problem_.sequences == 0 || problem_.most_queries == 0) return lse;
        const paged_attention::Choice choice = paged_attention::choose(problem_);
        arguments_.out = out.data();
        arguments_.out_token_bytes = stride_bytes(out, 0, dtype_);
        arguments_.out_head_bytes = stride_bytes(out, 1, dtype_);
        arguments_.lse = static_cast<float*>(lse.data());
        std::vector<runtime::Region> regions = {read(q_, dtype_, "q"),
                                                read(k_, cache_dtype_, latent_ ? "kv_cache" : "k_cache"),
                                                read(table_, Dtype::int32, "block_table"),
                                                read(lengths_, Dtype::int32, "seqused_k"),
                                                {out.data(), out.extent_bytes(dtype_), "out", true},
                                                {lse.data(), lse.extent_bytes(Dtype::float32), "lse", true}};
        if (v_) regions.push_back(read(*v_, cache_dtype_, "v_cache"));
        if (starts_) regions.push_back(read(*starts_, Dtype::int32, "table_starts"));
        if (ends_) regions.push_back(read(*ends_, Dtype::int32, "cu_seqlens_q"));
        if (slopes_) regions.push_back(read(*slopes_, Dtype::float32, "alibi_slopes"));
        if (sinks_) regions.push_back(read(*sinks_, Dtype::float32, "sinks"));
        if (k_scale_) regions.push_back(read(*k_scale_, Dtype::float32, latent_ ? "kv_scale" : "k_scale"));
        if (v_scale_) regions.push_back(read(*v_scale_, Dtype::float32, "v_scale"));
        if (plan_) regions.push_back(read(*plan_, Dtype::int32, "plan"));
        std::optional<Tensor> partial_out, partial_lse;
        if (choice.splits > 1 || plan_) {
            const std::array<int64_t, 4> sizes = {choice.splits,
                                                  plan_ ? problem_.most_queries : problem_.tokens,
                                                  problem_.heads, problem_.value_dim};
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

  private:
    static runtime::Region read(const Tensor& tensor, Dtype dtype, const char* name) {
        return {tensor.data(), tensor.extent_bytes(dtype), name, false};
    }
    static int64_t stride_bytes(const Tensor& tensor, size_t axis, Dtype dtype) {
        return tensor.strides()[axis] * bytes_of(dtype);
    }
    // Kernels access 16 bytes at a time, in rows that begin on 4 bytes.
    void check_rows(const Tensor& tensor, const char* name, int64_t even) const {
        const auto sizes = tensor.sizes(), strides = tensor.strides();
        const size_t last = sizes.size() - 1;
        bool readable =
            reinterpret_cast<uintptr_t>(tensor.data()) % 4 == 0 && (sizes[last] <= 1 || strides[last] == 1);
        for (size_t axis = 0; axis < last; ++axis)
            readable = readable && (sizes[axis] <= 1 || strides[axis] % even == 0);
        if (tensor.element_count() > 0 && !readable)
            fail(where_ + name +
                 " needs unit stride along its last dimension, and its rows to begin on 4 bytes");
    }

    const Tensor& values() const { return v_ ? *v_ : k_; }

    void check() {
        if (q_.dimensions() != 3 || table_.dimensions() != 2)
            fail(where_ + "q needs three dimensions, block_table two");
        const bool codes = k_.dtype_number() == aoti_torch_dtype_uint8();
        const bool integers = !latent_ && k_.dtype_number() == aoti_torch_dtype_int8();
        codes_ = codes || integers;
        cache_dtype_ = codes_ ? Dtype::uint8 : dtype_;
        if (dtype_ == Dtype::float32 || values().dtype_number() != k_.dtype_number() ||
            (!codes_ && k_.dtype(where_ + "k_cache") != dtype_))
            fail(where_ + "q needs to be bfloat16 or float16, and caches of its dtype or of 8 bits");
        problem_.element = element_type(dtype_);
        problem_.cache = codes ? ElementType::fp8 : integers ? ElementType::i8 : problem_.element;
        problem_.tokens = q_.sizes()[0];
        problem_.heads = q_.sizes()[1];
        problem_.head_dim = q_.sizes()[2];
        problem_.value_dim = latent_ ? paged_attention::latent_dim : problem_.head_dim;
        check_caches();
        problem_.sequences = lengths_.dimensions() == 1 ? lengths_.sizes()[0] : -1;
        problem_.most_pages = table_.sizes()[1];
        if (latent_ && (problem_.head_dim != paged_attention::latent_dim + paged_attention::rotary_dim ||
                        problem_.key_heads != 1))
            fail(where_ + "q needs rows of 512 + 64, and kv_cache one head");
        if (problem_.key_heads < 1 || problem_.heads < 1 || problem_.heads % problem_.key_heads)
            fail(where_ + "heads of q and of the caches do not fit together");
        if (problem_.page < 1 || problem_.page > INT32_MAX || problem_.most_queries < 0 ||
            problem_.most_queries > INT32_MAX / problem_.heads || problem_.num_splits < 0 ||
            problem_.num_splits > (plan_ ? paged_attention::most_planned : paged_attention::most_splits) ||
            (plan_ && problem_.num_splits == 0))
            fail(where_ + "the page size, max_seqlen_q or num_splits is out of range");
        if (!std::isfinite(arguments_.scale) || !(arguments_.softcap >= 0))
            fail(where_ + "scale needs to be finite and softcap 0 or more");
        check_rows(q_, "q", 2);
        check_rows(k_, latent_ ? "kv_cache" : "k_cache", codes_ ? 4 : 2);
        check_rows(values(), "v_cache", codes_ ? 4 : 2);
        check_numbers(table_, "block_table", aoti_torch_dtype_int32());
        check_numbers(lengths_, "seqused_k", aoti_torch_dtype_int32());
        if (problem_.sequences < 0 || table_.sizes()[0] != (starts_ ? 1 : problem_.sequences))
            fail(where_ + "seqused_k needs one length for each row of block_table");
        if (starts_) {
            check_numbers(*starts_, "table_starts", aoti_torch_dtype_int32());
            if (starts_->dimensions() != 1 || starts_->sizes()[0] != problem_.sequences)
                fail(where_ + "table_starts needs one place for each sequence");
            arguments_.table_starts = static_cast<const int32_t*>(starts_->data());
        }
        if (ends_) {
            check_numbers(*ends_, "cu_seqlens_q", aoti_torch_dtype_int32());
            if (ends_->dimensions() != 1 || ends_->sizes()[0] != problem_.sequences + 1)
                fail(where_ + "cu_seqlens_q needs one entry more than block_table has rows");
        } else if (problem_.tokens != problem_.sequences * problem_.most_queries) {
            fail(where_ + "q needs max_seqlen_q tokens for each row of block_table");
        }
        if (plan_) {
            check_numbers(*plan_, "plan", aoti_torch_dtype_int32());
            if (plan_->dimensions() != 1 || plan_->sizes()[0] != problem_.sequences + 2)
                fail(where_ + "plan needs two entries more than there are sequences");
            arguments_.plan = static_cast<const int32_t*>(plan_->data());
            problem_.planned = true;
            // Each sequence may have one partial split.
            problem_.num_splits += problem_.sequences;
        }
        if (slopes_) {
            check_numbers(*slopes_, "alibi_slopes", aoti_torch_dtype_float32());
            const bool each = slopes_->dimensions() == 2;
            if (slopes_->sizes().back() != problem_.heads ||
                (each && slopes_->sizes()[0] != problem_.sequences))
                fail(where_ + "alibi_slopes needs one slope for each head, or for each sequence and head");
            arguments_.slopes = static_cast<const float*>(slopes_->data());
            arguments_.slopes_stride = each ? slopes_->strides()[0] : 0;
        }
        if (sinks_) {
            check_numbers(*sinks_, "sinks", aoti_torch_dtype_float32());
            if (sinks_->dimensions() != 1 || sinks_->sizes()[0] != problem_.heads)
                fail(where_ + "sinks needs one number for each head");
            arguments_.sinks = static_cast<const float*>(sinks_->data());
        }
        arguments_.key_scales = scales_of(k_scale_, "k_scale");
        arguments_.value_scales = latent_ ? arguments_.key_scales : scales_of(v_scale_, "v_scale");
        problem_.scaling = has_scaled_rows()  ? CacheScaling::in_rows
                           : by_key(k_scale_) ? CacheScaling::by_key
                                              : CacheScaling::by_sequence;
        if (has_scaled_rows() && (k_scale_ || arguments_.value_factor != 1 || dtype_ != Dtype::bfloat16))
            fail(where_ + "rows with scales need q of bfloat16 and no kv_scale");
        if (!latent_ && by_key(k_scale_) != by_key(v_scale_))
            fail(where_ + "k_scale and v_scale are both of each key, or neither");
        if (!codes_ && arguments_.value_factor != 1) fail(where_ + "only caches of 8 bits have a scale");
        arguments_.q = q_.data();
        arguments_.q_token_bytes = stride_bytes(q_, 0, dtype_);
        arguments_.q_head_bytes = stride_bytes(q_, 1, dtype_);
        arguments_.table = static_cast<const int32_t*>(table_.data());
        arguments_.table_stride = table_.strides()[0];
        arguments_.sequences.lengths = static_cast<const int32_t*>(lengths_.data());
        arguments_.sequences.ends = ends_ ? static_cast<const int32_t*>(ends_->data()) : nullptr;
    }
    // Sets the problem's sizes that follow from the caches, and the addresses of the caches.
    void check_caches() {
        const bool grouped = layout_ == CacheLayout::paged || layout_ == CacheLayout::paged_asm;
        const Dtype dtype = cache_dtype_;
        const auto stride = [&](const Tensor& cache, size_t axis) {
            return stride_bytes(cache, axis, dtype);
        };
        const auto near = [&](int64_t bytes) {
            if (bytes < 0 || bytes > INT32_MAX / (grouped ? 512 : 8))
                fail(where_ + "slots or features of a cache are too far apart");
            return static_cast<uint32_t>(bytes);
        };
        const int64_t of_keys = grouped ? 5 : 4, of_values = layout_ == CacheLayout::paged_asm ? 5 : 4;
        if (k_.dimensions() != of_keys || values().dimensions() != of_values)
            fail(where_ + "a cache has another shape than its layout");
        const auto size = k_.sizes(), value_size = values().sizes();
        problem_.grouped = grouped;
        const size_t heads = layout_ == CacheLayout::nhd ? 2 : 1, slots = grouped                       ? 3
                                                                          : layout_ == CacheLayout::nhd ? 1
                                                                                                        : 2;
        problem_.key_heads = size[heads];
        problem_.page = size[slots];
        arguments_.k = {k_.data(), stride(k_, 0), stride(k_, heads), near(stride(k_, slots)), 0, 0};
        arguments_.v = {values().data(), stride(values(), 0), stride(values(), heads), 0, 0, 0};
        bool fits = size[0] == value_size[0] && size[heads] == value_size[heads];
        if (!grouped) {
            for (size_t axis = 0; axis < 4; ++axis) fits = fits && size[axis] == value_size[axis];
            fits = fits && (size[3] == problem_.head_dim || has_scaled_rows());
            arguments_.v.slot_bytes = near(stride(values(), slots));
        } else {
            const int64_t x = 16 / bytes_of(dtype);
            const bool by_group = layout_ == CacheLayout::paged_asm;
            fits = fits && size[2] * x == problem_.head_dim && size[4] == x && problem_.page % 8 == 0 &&
                   value_size[by_group ? 3 : 2] == problem_.head_dim &&
                   (by_group ? value_size[2] * x == problem_.page && value_size[4] == x
                             : value_size[3] == problem_.page);
            arguments_.k.group_bytes = near(stride(k_, 2));
            arguments_.v.group_bytes = by_group ? near(stride(values(), 2)) : 16;
            arguments_.v.feature_bytes = near(stride(values(), by_group ? 3 : 2));
        }
        if (!fits) fail(where_ + "k_cache, v_cache and q do not fit together");
    }
    bool has_scaled_rows() const {
        return latent_ && codes_ && k_.sizes().back() == paged_attention::scaled_row_bytes;
    }
    static bool by_key(const std::optional<Tensor>& scale) {
        return scale && scale->element_count() != 1 && scale->dimensions() == 3;
    }
    // One scale for all keys, (H_k,), (B, H_k), or one for each key (blocks, H_k, block size).
    paged_attention::CacheScales scales_of(const std::optional<Tensor>& scale, const char* name) const {
        if (!scale) return {};
        if (!codes_) fail(where_ + "only caches of 8 bits have a scale");
        if (scale->dtype_number() != aoti_torch_dtype_float32() || !(scale->device() == q_.device()))
            fail(where_ + name + " needs to be float32, on the device of q");
        paged_attention::CacheScales scales{static_cast<const float*>(scale->data()), 0, 0, 0, 0};
        if (scale->element_count() == 1) return scales;
        const auto sizes = scale->sizes(), strides = scale->strides();
        const size_t dimensions = scale->dimensions();
        bool fits = !latent_ && dimensions >= 1 && dimensions <= 3;
        if (fits && dimensions == 3) {
            fits = sizes[0] == k_.sizes()[0] && sizes[1] == problem_.key_heads && sizes[2] == problem_.page;
            scales.page_step = strides[0];
            scales.head_step = strides[1];
            scales.slot_step = strides[2];
        } else if (fits) {
            fits = sizes[dimensions - 1] == problem_.key_heads &&
                   (dimensions == 1 || sizes[0] == problem_.sequences);
            scales.head_step = strides[dimensions - 1];
            scales.sequence_step = dimensions == 2 ? strides[0] : 0;
        }
        if (!fits)
            fail(where_ + name +
                 " needs one number, or one of each key head, sequence and key head, or key of the cache");
        return scales;
    }
    // Rows with unit stride.
    void check_numbers(const Tensor& tensor, const char* name, int32_t dtype) const {
        const size_t last = tensor.sizes().size() - 1;
        if (tensor.dtype_number() != dtype || !(tensor.device() == q_.device()) || tensor.dimensions() < 1 ||
            (tensor.sizes()[last] > 1 && tensor.strides()[last] != 1))
            fail(where_ + name + " needs to be " + (dtype == aoti_torch_dtype_int32() ? "int32" : "float32") +
                 " with unit stride, on the device of q");
    }

    std::string where_;
    bool latent_, codes_ = false;
    Tensor q_, k_;
    std::optional<Tensor> v_;
    Tensor table_;
    std::optional<Tensor> starts_;
    Tensor lengths_;
    std::optional<Tensor> ends_, slopes_, sinks_, k_scale_, v_scale_, plan_;
    Dtype dtype_, cache_dtype_ = Dtype::uint8;
    CacheLayout layout_ = CacheLayout::nhd;
    paged_attention::Problem problem_{};
    PagedArguments arguments_{};
};

constexpr uint64_t argument_counts[] = {21, 13};

template <Caches caches>
void attend(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != argument_counts[static_cast<int>(caches)] || result_count != 2)
        fail("attention to a cache in pages is registered with another schema");
    Arguments given(stack, argument_count);
    Call call(given, caches);
    const Placement placement(call.q().device());
    Tensor out = placement.empty(call.out_sizes(), call.dtype());
    Tensor lse = call.run(placement, out);
    stack[0] = to_result(std::move(out));
    stack[1] = to_result(std::move(lse));
}

template <Caches caches>
void attend_into(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != argument_counts[static_cast<int>(caches)] + 1 || result_count != 1)
        fail("attention to a cache in pages is registered with another schema");
    Arguments given(stack, argument_count);
    const Tensor out = given.tensor();
    Call call(given, caches);
    call.check_out(out);
    stack[0] = to_result(call.run(Placement(call.q().device()), out));
}

const Registration registration{{
    {attention_paged_schema, &attend<Caches::two>},
    {attention_paged_into_schema, &attend_into<Caches::two>},
    {attention_mla_schema, &attend<Caches::latent>},
    {attention_mla_into_schema, &attend_into<Caches::latent>},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
