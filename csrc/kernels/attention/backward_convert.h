// kernels/attention/backward_convert.h: dQ from its sums in memory, dK and dV from their shares.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_config.h"
#include "forward_tiles.h"
#include "key_shares.h"
#include "query_sums.h"

namespace hipkittens::attention {

// Workgroups take blocks of queries, and after them parts of blocks of keys where a group's heads were split. A lane takes 8
// elements of a row at a time. Whole lines are read and written: what lies in memory otherwise than it is stored has its
// lanes exchanged on the way.
template <class T>
struct Convert {
    static constexpr int per_lane = kittens::b128_bytes / sizeof(T);
    using Run = kittens::vec<T, per_lane>;

    KITTENS_DEVICE static void run(const BackwardArguments& arguments) {
        const uint32_t workgroup = kittens::workgroup_id_x();
        const auto queries =
            static_cast<uint32_t>(arguments.order.tiles) * arguments.order.heads * arguments.order.batch;
        if (workgroup < queries)
            of_queries(arguments, coordinate_of_workgroup(workgroup, arguments.order));
        else
            of_keys(arguments, workgroup - queries);
    }

  private:
    KITTENS_DEVICE static Run* element(const TensorArgument& tensor, const Sequence& sequence, int head,
                                       int64_t row, int col) {
        return reinterpret_cast<Run*>(static_cast<T*>(const_cast<void*>(tensor.data)) +
                                      sequence.batch * tensor.batch_stride + head * tensor.head_stride +
                                      row * tensor.row_stride + col);
    }

    // Neighbouring lanes read neighbouring rows, as they lie among the sums, and write neighbouring columns.
    KITTENS_DEVICE static void of_queries(const BackwardArguments& arguments, const TileCoordinate& place) {
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
        const int row = kittens::thread_id() % statistics_block;
        const auto statistic = [&](Statistic which) {
            return arguments.statistics[statistic_index(which, row_of_all + row)];
        };
        const float bound = bounds.bound(statistic(Statistic::norm), statistic(Statistic::delta));
        // What is not finite cannot be added up in whole numbers; it was NaN or infinite somewhere.
        const float factor = bound < __builtin_inff() ? arguments.scale : __builtin_nanf("");
        const int exponent = bound_exponent(bound) - sum_bits;
        const int32_t* sums = arguments.sums + row_of_all * arguments.sums_width;
        // Runs of a row, and those of as many rows that follow each other, lie in different banks.
        static __attribute__((shared,
                              aligned(16))) Run lds[statistics_block * largest_one_pass_head_dim / per_lane];
        const uint32_t runs = arguments.sums_width / per_lane;
        const auto place_of = [&](uint32_t row, uint32_t run) { return row * runs + (run ^ row % runs); };
        constexpr int step = delta_threads / statistics_block * per_lane;
        for (int col = kittens::thread_id() / statistics_block * per_lane; col < arguments.head_dim;
             col += step) {
            kittens::vec<int32_t, per_lane> sum;
#pragma unroll
            for (int e = 0; e < per_lane; ++e)
                sum[e] = sums[sum_index(row, col, arguments.sums_width) + sum_index(0, e, 32)];
            Run values;
#pragma unroll
            for (int e = 0; e < per_lane; ++e)
                values[e] =
                    static_cast<T>(kittens::times_power_of_2(static_cast<float>(sum[e]), exponent) * factor);
            lds[place_of(row, col / per_lane)] = values;
        }
        kittens::barrier();
        const int run = kittens::thread_id() % runs,
                  count = n_q - begin < statistics_block ? n_q - begin : statistics_block;
        if (run * per_lane >= arguments.head_dim) return;
        for (int own = kittens::thread_id() / runs; own < count; own += delta_threads / runs)
            *element(arguments.grad_q, sequence, place.head, sequence.first_q + begin + own, run * per_lane) =
                lds[place_of(own, run)];
    }

    // 32 keys and 64 columns of dK or dV: 8 lanes read a line of 8 rows of four columns, and write a line of a row.
    KITTENS_DEVICE static void of_keys(const BackwardArguments& arguments, uint32_t workgroup) {
        constexpr int rows = statistics_block / share_rows;
        const uint32_t runs = arguments.sums_width / convert_columns, number = workgroup / (2 * rows);
        const bool values = workgroup % 2;
        const TileCoordinate place = block_of_keys(arguments, number / runs);
        const Sequence sequence = sequence_of(place.batch, arguments.mask, arguments.packed);
        const int thread = kittens::thread_id(),
                  first_row = place.tile * statistics_block + workgroup / 2 % rows * share_rows,
                  row = thread / kittens::wave_lanes * 8 + thread % 8,
                  col = number % runs * convert_columns + thread % kittens::wave_lanes / 8 * per_lane;
        if (first_row + row >= sequence.mask.n_k || col >= arguments.head_dim) return;
        const float* share =
            key_shares_at(arguments, sequence, place.batch, place.head, 0, first_row, values) +
            key_share_index(row, col);
        using Half = kittens::vec<float, per_lane / 2>;
        Half low{}, high{};
        // So many parts are under way at a time.
#pragma clang loop unroll_count(4)
        for (int part = 0; part < arguments.parts; ++part, share += arguments.floats_per_part) {
            low += *reinterpret_cast<const Half*>(share);
            high += *reinterpret_cast<const Half*>(share + key_share_index(0, per_lane / 2));
        }
        const float factor_of_values = arguments.dropout.seed ? arguments.dropout.scale : 1.0f;
        *element(values ? arguments.grad_v : arguments.grad_k, sequence, place.head,
                 sequence.first_k + first_row + row, col) =
            __builtin_convertvector(__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7) *
                                        (values ? factor_of_values : arguments.scale),
                                    Run);
    }
};

}  // namespace hipkittens::attention
