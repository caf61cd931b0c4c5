// kernels/attention/combine.h: combines the results of the splits of the keys.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "../element_of.h"
#include "../sink_weight.h"
#include "arguments.h"
#include "config.h"

namespace hipkittens::attention {

using namespace kittens;

// Split p has out_p = sum over its keys of exp(s) v / exp(lse_p), so that out = sum of exp(lse_p - lse) out_p. Splits are
// added in ascending order, no matter which was computed first. A split that saw no key has lse -inf and weight zero.
template <ElementConfig config>
struct CombineKernel {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = combine_threads, waves_per_simd = 1, lds_bytes = 0;
    static constexpr int lanes = combine_lanes_per_row, rows_per_workgroup = threads / lanes;
    static constexpr int per_lane = 4;

    KITTENS_DEVICE static float weight(float lse, float base) {
        constexpr float log2_e = 1.4426950408889634f;
        return exponential_base_2((lse - base) * log2_e);
    }

    KITTENS_DEVICE static void run(const CombineArguments& arguments) {
        using Values = vec<float, per_lane>;
        constexpr float ln_2 = 0.69314718055994531f;
        const int64_t row = static_cast<int64_t>(workgroup_id_x()) * rows_per_workgroup + thread_id() / lanes;
        if (row >= arguments.rows) return;
        const float* lses = arguments.partial_lse + row;
        float largest = -__builtin_inff(), total = 0;
#pragma clang loop unroll_count(4)
        for (int split = 0; split < arguments.splits; ++split)
            largest = larger(largest, lses[split * arguments.rows]);
        // Without any key: exp(-inf - 0), not exp(-inf + inf).
        const float base = largest == -__builtin_inff() ? 0.0f : largest;
#pragma clang loop unroll_count(4)
        for (int split = 0; split < arguments.splits; ++split)
            total += weight(lses[split * arguments.rows], base);

        const auto of_head = static_cast<uint32_t>(row) / static_cast<uint32_t>(arguments.rows_per_head);
        const int64_t batch = of_head / arguments.heads, head = of_head % arguments.heads,
                      query = row - of_head * arguments.rows_per_head;
        const int lane = thread_id() % lanes;
        if (lane == 0)
            arguments.lse[row] = total == 0.0f ? -__builtin_inff() : base + logarithm_base_2(total) * ln_2;
        float divisor = total;
        if (arguments.sinks) {
            constexpr float log2_e = 1.4426950408889634f;
            divisor += sink_weight(arguments.sinks[head], base * log2_e);
        }
        const float scale = total == 0.0f ? 0.0f : 1.0f / divisor;
        T* out = row_of<T>(arguments.out, batch, head, query);
        const int64_t split_stride = arguments.rows * arguments.value_dim;
        for (int col = lane * per_lane; col < arguments.value_dim; col += lanes * per_lane) {
            const float* partial = arguments.partial_out + row * arguments.value_dim + col;
            Values sum = {};
#pragma clang loop unroll_count(4)
            for (int split = 0; split < arguments.splits; ++split) {
                const Values values = *reinterpret_cast<const Values*>(partial + split * split_stride);
                const float factor = weight(lses[split * arguments.rows], base) * scale;
#pragma unroll
                for (int e = 0; e < per_lane; ++e) sum[e] = __builtin_fmaf(values[e], factor, sum[e]);
            }
            *reinterpret_cast<vec<T, per_lane>*>(out + col) = __builtin_convertvector(sum, vec<T, per_lane>);
        }
    }
};

}  // namespace hipkittens::attention
