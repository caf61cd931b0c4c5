// kernels/paged_attention/merge.h: combines attention over some of the keys with attention over the others.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "../element_of.h"
#include "key_tile.h"
#include "row_softmax.h"

namespace hipkittens::paged_attention {

// out = sum of exp(lse_p - lse) out_p, lse = ln sum exp(lse_p), in float32, rounded once. A part without keys has weight zero
// whatever its row contains; its lse is -inf or, as in flash-attn, +inf.
template <ElementConfig config>
struct Merge {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = merge_threads, waves_per_simd = 4, lds_bytes = 0;
    using Columns = vec<T, merge_columns>;
    using Wide = vec<float, merge_columns>;

    KITTENS_DEVICE static void run(const MergeArguments& arguments) {
        constexpr float ln_2 = 0.69314718055994531f;
        const uint32_t thread = workgroup_id_x() * threads + thread_id();
        const uint32_t row = arguments.threads_per_row.quotient(thread),
                       column = (thread - row * arguments.threads_per_row.value) * merge_columns;
        const uint32_t token = arguments.heads.quotient(row), head = row - token * arguments.heads.value;
        if (token >= arguments.tokens) return;
        const int64_t statistic = head * static_cast<int64_t>(arguments.tokens) + token;
        float lse[2];
        Columns values[2];
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const PartArgument& from = arguments.parts[part];
            lse[part] = ((global<const float>)from.lse)[statistic];
            values[part] =
                load_at<Columns>((global<const char>)from.out + token * from.token_bytes +
                                 head * from.head_bytes + column * static_cast<uint32_t>(sizeof(T)));
        }
#pragma unroll
        for (int part = 0; part < 2; ++part)
            lse[part] = lse[part] == __builtin_inff() ? RowSoftmax::none : lse[part];
        const float largest = larger(lse[0], lse[1]), base = RowSoftmax::base_of(largest);
        Wide sum = 0.0f;
        float total = 0;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const float weight = exponential<true>(lse[part] - base);
            total += weight;
            const Wide next =
                __builtin_elementwise_fma(__builtin_convertvector(values[part], Wide), Wide(weight), sum);
            sum = lse[part] == RowSoftmax::none ? sum : next;
        }
        sum *= total == 0.0f ? 0.0f : 1.0f / total;
        typedef Columns narrow __attribute__((aligned(4)));
        ((global<narrow>)arguments.out)[row * arguments.threads_per_row.value + column / merge_columns] =
            __builtin_convertvector(sum, Columns);
        if (column == 0)
            ((global<float>)arguments.lse)[statistic] =
                total == 0.0f ? RowSoftmax::none : base + logarithm_base_2(total) * ln_2;
    }
};

}  // namespace hipkittens::paged_attention
