// kernels/attention/backward_convert.h: dQ from its sums in memory.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_config.h"
#include "forward_tiles.h"
#include "query_sums.h"

namespace hipkittens::attention {

// A workgroup takes a block of queries of one head. A lane takes 8 elements of a row at a time.
template <class T>
struct Convert {
    static constexpr int per_lane = kittens::chunk_bytes / sizeof(T);

    KITTENS_DEVICE static void run(const BackwardArguments& arguments) {
        const TilePlace place = place_of_workgroup(kittens::workgroup_id_x(), arguments.order);
        const Sequence sequence = sequence_of(place.batch, arguments.mask, arguments.packed);
        const int begin = place.tile * statistics_block, n_q = sequence.mask.n_q;
        if (begin >= n_q) return;
        const int64_t row_of_all =
            (sequence.batch * arguments.heads + place.head) * arguments.statistics_rows + begin +
            (arguments.packed.first_q ? statistics_row(sequence.first_q, place.batch) : 0);
        KeyBounds bounds =
            bounds_of(arguments, sequence, place.batch,
                      static_cast<uint32_t>(place.head) / static_cast<uint32_t>(arguments.group));
        if (arguments.dropout.seed) bounds.v *= arguments.dropout.scale;
        T* to = static_cast<T*>(const_cast<void*>(arguments.grad_q.data)) +
                sequence.batch * arguments.grad_q.batch_stride + place.head * arguments.grad_q.head_stride +
                (sequence.first_q + begin) * arguments.grad_q.row_stride;
        const int count = n_q - begin < statistics_block ? n_q - begin : statistics_block;
        const int row = kittens::thread_id() % statistics_block;
        if (row >= count) return;
        const auto statistic = [&](Statistic which) {
            return arguments.statistics[statistic_index(which, row_of_all + row)];
        };
        const float bound = bounds.bound(statistic(Statistic::norm), statistic(Statistic::delta));
        // What is not finite cannot be added up in whole numbers; it was NaN or infinite somewhere.
        const float factor = bound < __builtin_inff() ? arguments.scale : __builtin_nanf("");
        const int exponent = bound_exponent(bound) - sum_bits;
        const int32_t* sums = arguments.sums + row_of_all * arguments.sums_width;
        // Neighbouring lanes take neighbouring rows, as they lie among the sums.
        constexpr int step = delta_threads / statistics_block * per_lane;
        for (int col = kittens::thread_id() / statistics_block * per_lane; col < arguments.head_dim;
             col += step) {
            kittens::vec<int32_t, per_lane> sum;
#pragma unroll
            for (int e = 0; e < per_lane; ++e)
                sum[e] = sums[sum_index(row, col, arguments.sums_width) + sum_index(0, e, 32)];
            kittens::vec<T, per_lane> values;
#pragma unroll
            for (int e = 0; e < per_lane; ++e)
                values[e] =
                    static_cast<T>(kittens::times_power_of_2(static_cast<float>(sum[e]), exponent) * factor);
            *reinterpret_cast<kittens::vec<T, per_lane>*>(to + row * arguments.grad_q.row_stride + col) =
                values;
        }
    }
};

}  // namespace hipkittens::attention
