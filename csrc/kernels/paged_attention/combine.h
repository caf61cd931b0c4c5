// kernels/paged_attention/combine.h: one result from those of the splits of the keys.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "../element_of.h"
#include "key_tile.h"
#include "row_softmax.h"

namespace hipkittens::paged_attention {

// Split p has out_p = sum over its keys of exp(s) v / exp(lse_p), so that out = sum of exp(lse_p - lse) out_p. Splits are
// added in their order, whichever was computed first. One that saw no key has lse -inf and has no weight. The sink is counted here,
// once.
template <ElementConfig config>
struct Combine {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = combine_threads, waves_per_simd = 4, lds_bytes = 0;
    static constexpr int lanes = combine_lanes_per_row, per_lane = 4, batch = 8;

    KITTENS_DEVICE static void run(const CombineArguments& arguments) {
        constexpr float ln_2 = 0.69314718055994531f, log2_e = 1.4426950408889634f;
        const uint32_t row = workgroup_id_x() * (threads / lanes) + thread_id() / lanes;
        const uint32_t token = arguments.heads.quotient(row), head = row - token * arguments.heads.value;
        uint32_t past = arguments.tokens;
        if (arguments.past_tokens) past = *arguments.past_tokens;
        if (token >= past) return;
        const int64_t rows = static_cast<int64_t>(arguments.tokens) * arguments.heads.value;
        const auto lses = (global<const float>)arguments.partial_lse + row;
        const int lane = thread_id() % lanes;
        const int64_t split_stride = rows * arguments.head_dim;
        for (int column = lane * per_lane; column < arguments.head_dim; column += lanes * per_lane) {
            const auto partial = (global<const float>)arguments.partial_out +
                                 row * static_cast<int64_t>(arguments.head_dim) + column;
            using Values = vec<float, per_lane>;
            Values sum = 0.0f;
            // Of base 2, and of the sum of its exponentials relative to it.
            float largest = RowSoftmax::none, total = 0;
            for (int first = 0; first < arguments.splits; first += batch) {
                float lse[batch];
                Values values[batch];
                // Behind the last split there is none: the last one is read again, and has no weight.
#pragma unroll
                for (int i = 0; i < batch; ++i) {
                    const int64_t split = first + i < arguments.splits ? first + i : arguments.splits - 1;
                    lse[i] = lses[split * rows] * log2_e;
                    values[i] = *(global<const Values>)(partial + split * split_stride);
                }
                float next = largest;
#pragma unroll
                for (int i = 0; i < batch; ++i) {
                    if (first + i >= arguments.splits) lse[i] = RowSoftmax::none;
                    next = larger(next, lse[i]);
                }
                const float base = RowSoftmax::base_of(next), factor = exponential_base_2(largest - base);
                largest = next;
                sum *= factor;
                total *= factor;
#pragma unroll
                for (int i = 0; i < batch; ++i) {
                    const float weight = exponential_base_2(lse[i] - base);
                    total += weight;
                    sum = __builtin_elementwise_fma(values[i], Values(weight), sum);
                }
            }
            float divisor = total;
            if (arguments.sinks)
                divisor +=
                    sink_weight(((global<const float>)arguments.sinks)[head], RowSoftmax::base_of(largest));
            sum *= total == 0.0f ? 0.0f : 1.0f / divisor;
            const auto out = (global<char>)arguments.out + token * arguments.out_token_bytes +
                             head * arguments.out_head_bytes;
            typedef vec<T, per_lane> narrow __attribute__((aligned(4)));
            *(global<narrow>)(out + column * static_cast<int>(sizeof(T))) =
                __builtin_convertvector(sum, vec<T, per_lane>);
            if (column == 0)
                ((global<float>)arguments.lse)[head * static_cast<int64_t>(arguments.tokens) + token] =
                    total == 0.0f ? RowSoftmax::none : (largest + logarithm_base_2(total)) * ln_2;
        }
    }
};

}  // namespace hipkittens::paged_attention
