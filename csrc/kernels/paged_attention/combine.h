// kernels/paged_attention/combine.h: combines the results of the splits of the keys.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "../element_of.h"
#include "key_tile.h"
#include "row_softmax.h"
#include "sequence_of.h"

namespace hipkittens::paged_attention {

// Split p has out_p = sum over its keys of exp(s) v / exp(lse_p), so that out = sum of exp(lse_p - lse) out_p. Each group of lanes
// adds some of the splits in ascending order, and the first group then adds the results of the groups in ascending order, no
// matter which was computed first. Which splits a group adds does not depend on how many there are: groups without any process
// other columns, or other rows. A split that saw no key has lse -inf and weight zero. The sink is included here, once.
template <ElementConfig config>
struct Combine {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = combine_threads, waves_per_simd = 4;
    static constexpr int lanes = group_lanes, groups = threads / lanes, per_lane = group_columns / lanes,
                         batch = group_splits;
    using Values = vec<float, per_lane>;
    // Per group: its sums, their largest exponent and the sum of weights.
    static constexpr int sum_bytes = threads * static_cast<int>(sizeof(Values)),
                         lds_bytes = sum_bytes + threads * 8;

    // Exponents are base 2.
    float largest, total;
    Values sum;

    KITTENS_DEVICE void raise(float exponent) {
        const float base = RowSoftmax::base_of(exponent), factor = exponential_base_2(largest - base);
        largest = exponent;
        sum *= factor;
        total *= factor;
    }
    // Adds splits from `first` on, as many as fit in a batch; none past the last one.
    KITTENS_DEVICE void add(const CombineArguments& arguments, global<const float> lses,
                            global<const float> partial, int first, int splits, int64_t rows) {
        constexpr float log2_e = 1.4426950408889634f;
        float lse[batch];
        Values values[batch];
        // Past the last split, that split is read again with weight zero.
#pragma unroll
        for (int i = 0; i < batch; ++i) {
            const int64_t split = first + i < splits ? first + i : splits - 1;
            lse[i] = lses[split * rows] * log2_e;
            values[i] = *(global<const Values>)(partial + split * rows * arguments.head_dim);
        }
        float next = largest;
#pragma unroll
        for (int i = 0; i < batch; ++i) {
            if (first + i >= splits) lse[i] = RowSoftmax::none;
            next = larger(next, lse[i]);
        }
        raise(next);
        const float base = RowSoftmax::base_of(largest);
#pragma unroll
        for (int i = 0; i < batch; ++i) {
            const float weight = exponential_base_2(lse[i] - base);
            total += weight;
            sum = __builtin_elementwise_fma(values[i], Values(weight), sum);
        }
    }
    // Combines the sums that the `sharing` groups from the thread's on have for the same columns; the first group gets the result.
    KITTENS_DEVICE void join(shared_byte* lds, int sharing) {
        const int thread = thread_id();
        lds_write(sum, lds + thread * static_cast<int>(sizeof(Values)));
        lds_write(vec<float, 2>{largest, total}, lds + sum_bytes + thread * 8);
        barrier();
        if (thread / lanes & (sharing - 1)) return;
        for (int other = thread + lanes; other < thread + sharing * lanes; other += lanes) {
            const auto sums = lds_read<Values>(lds + other * static_cast<int>(sizeof(Values)));
            const auto statistics = lds_read<vec<float, 2>>(lds + sum_bytes + other * 8);
            raise(larger(largest, statistics[0]));
            const float factor = exponential_base_2(statistics[0] - RowSoftmax::base_of(largest));
            total = __builtin_fmaf(statistics[1], factor, total);
            sum = __builtin_elementwise_fma(sums, Values(factor), sum);
        }
    }

    KITTENS_DEVICE static void run(const CombineArguments& arguments, shared_byte* lds) {
        constexpr float ln_2 = 0.69314718055994531f;
        const int group_of_workgroup = thread_id() / lanes, row_shift = arguments.log2_groups_of_row,
                  group_of_row = group_of_workgroup & ((1 << row_shift) - 1);
        const uint32_t row =
            (workgroup_id_x() * groups >> row_shift) + uniform(group_of_workgroup >> row_shift);
        const uint32_t token = uniform(arguments.heads.quotient(row)),
                       head = row - token * arguments.heads.value;
        const Sequences& sequences = arguments.sequences;
        uint32_t past = arguments.tokens;
        if (sequences.ends) past = sequences.ends[sequences.count];
        if (token >= past) return;
        // The rows of a split, and the index of this row in it; the number of its splits.
        int64_t rows = static_cast<int64_t>(arguments.tokens) * arguments.heads.value, first_row = row;
        int splits = arguments.splits;
        if (arguments.plan) {
            const int32_t* begins = arguments.plan + 1;
            uint32_t sequence, query;
            if (sequences.ends) {
                sequence = sequence_of(token, sequences.ends, sequences.count);
                query = token - sequences.ends[sequence];
            } else {
                sequence = uniform(arguments.queries.quotient(token));
                query = token - sequence * arguments.queries.value;
            }
            rows = static_cast<int64_t>(sequences.queries) * arguments.heads.value;
            first_row = begins[sequence] * rows + query * arguments.heads.value + head;
            splits = begins[sequence + 1] - begins[sequence];
        }
        const int shift = log2_groups_that_add(splits), sharing = 1 << shift,
                  group = group_of_row & (sharing - 1), step = group_columns << row_shift >> shift;
        for (int first = 0; first < arguments.head_dim; first += step) {
            const int band = first + (group_of_row >> shift) * group_columns;
            // Groups that share columns meet at barriers, even if there are no such columns.
            if (sharing == 1 && band >= arguments.head_dim) return;
            const int own = band + thread_id() % lanes * per_lane;
            // Lanes without columns do the work of the last ones, except for the store.
            const int column = own < arguments.head_dim ? own : arguments.head_dim - per_lane;
            const auto partial =
                (global<const float>)arguments.partial_out + first_row * arguments.head_dim + column;
            Combine result{RowSoftmax::none, 0.0f, 0.0f};
            for (int split = group * batch; split < splits; split += groups * batch)
                result.add(arguments, (global<const float>)arguments.partial_lse + first_row, partial, split,
                           splits, rows);
            if (sharing > 1) {
                if (first) barrier();
                result.join(lds, sharing);
            }
            if (group == 0 && own < arguments.head_dim) {
                float divisor = result.total;
                if (arguments.sinks)
                    divisor += sink_weight(((global<const float>)arguments.sinks)[head],
                                           RowSoftmax::base_of(result.largest));
                const Values values = result.sum * (result.total == 0.0f ? 0.0f : 1.0f / divisor);
                const auto out = (global<char>)arguments.out + token * arguments.out_token_bytes +
                                 head * arguments.out_head_bytes;
                typedef vec<T, per_lane> narrow __attribute__((aligned(4)));
                *(global<narrow>)(out + column * static_cast<int>(sizeof(T))) =
                    __builtin_convertvector(values, vec<T, per_lane>);
                if (column == 0)
                    ((global<float>)arguments.lse)[head * static_cast<int64_t>(arguments.tokens) + token] =
                        result.total == 0.0f ? RowSoftmax::none
                                             : (result.largest + logarithm_base_2(result.total)) * ln_2;
            }
        }
    }
};

}  // namespace hipkittens::paged_attention
