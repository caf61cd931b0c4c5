// kernels/attention/backward_convert.h: converts dQ from its accumulator, and dK and dV from their split partials.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "backward_config.h"
#include "dq_accumulator.h"
#include "forward_tiles.h"
#include "split_partials.h"

namespace hipkittens::attention {

// Workgroups process blocks of queries and, after them, pieces of blocks of keys if the heads of a group were split. A lane
// processes 8 elements of a row at a time. Reads and writes cover whole cache lines: where the order of the accumulator
// differs from that of the result, lanes exchange data through LDS.
template <ElementConfig config>
struct ConvertKernel {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = delta_threads, waves_per_simd = 1, lds_bytes = 0;
    static constexpr int per_lane = b128_bytes / sizeof(T);
    using Run = vec<T, per_lane>;
    // Columns of dQ in LDS at a time.
    static constexpr int largest_part = 128, smallest_part = 64;

    KITTENS_DEVICE static void run(const BackwardArguments& arguments) {
        run_blocks<ConvertKernel>(arguments);
    }

    KITTENS_DEVICE static Run* element(const TensorArgument& tensor, const Sequence& sequence, int head,
                                       int64_t row, int col) {
        return reinterpret_cast<Run*>(row_of<T>(tensor, sequence.batch, head, row) + col);
    }

    // Adjacent lanes read adjacent rows, which are adjacent in the accumulator, and write adjacent columns.
    KITTENS_DEVICE static void of_queries(const BackwardArguments& arguments,
                                          const TileCoordinate& coordinate) {
        const Sequence sequence = sequence_of(coordinate.batch, arguments.mask, arguments.packed);
        const int begin = coordinate.tile * statistics_block, n_q = sequence.mask.n_q;
        if (begin >= n_q) return;
        const int64_t row_of_all =
            first_statistics_row(arguments, sequence, coordinate.batch, coordinate.head) + begin;
        const KeyBounds bounds =
            bounds_of(arguments, sequence, coordinate.batch, key_head_of(coordinate.head, arguments.group));
        const int row = thread_id() % statistics_block;
        const auto statistic = [&](Statistic which) {
            return arguments.statistics[statistic_index(which, row_of_all + row)];
        };
        const float bound = bounds.bound(statistic(Statistic::norm), statistic(Statistic::dq_delta));
        // A non-finite value cannot be accumulated as an integer; some input was NaN or infinite.
        const float factor = bound < __builtin_inff() ? arguments.scale : __builtin_nanf("");
        const int exponent = bound_exponent(bound) - dq_bits;
        const int32_t* accumulator = arguments.dq_accumulator + row_of_all * arguments.dq_width;
        // The runs of a row, and those of the same number of consecutive rows, are in different banks: a power of two.
        static __attribute__((shared, aligned(16))) Run lds[statistics_block * largest_part / per_lane];
        const int part = arguments.dq_width % largest_part ? smallest_part : largest_part;
        const uint32_t runs = part / per_lane;
        const auto lds_index = [&](uint32_t row, uint32_t run) { return row * runs + (run ^ row % runs); };
        constexpr int step = delta_threads / statistics_block * per_lane;
        const int count = n_q - begin < statistics_block ? n_q - begin : statistics_block;
        for (int first = 0; first < arguments.head_dim; first += part) {
            if (first) barrier();
            const int cols = arguments.head_dim - first < part ? arguments.head_dim - first : part;
            for (int col = thread_id() / statistics_block * per_lane; col < cols; col += step) {
                Run values;
#pragma unroll
                for (int e = 0; e < per_lane; ++e) {
                    const int32_t sum =
                        accumulator[dq_index(row, first + col, arguments.dq_width) + dq_index(0, e, 32)];
                    values[e] = static_cast<T>(times_power_of_2(static_cast<float>(sum), exponent) * factor);
                }
                lds[lds_index(row, col / per_lane)] = values;
            }
            barrier();
            const int run = thread_id() % runs;
            if (run * per_lane < cols)
                for (int own = thread_id() / runs; own < count; own += delta_threads / runs)
                    *element(arguments.grad_q, sequence, coordinate.head, sequence.first_q + begin + own,
                             first + run * per_lane) = lds[lds_index(own, run)];
        }
    }

    // 32 keys and 64 columns of dK or dV: 8 lanes read a line of 8 rows of four columns, and write a line of a row.
    KITTENS_DEVICE static void of_keys(const BackwardArguments& arguments, uint32_t workgroup) {
        constexpr int rows = statistics_block / partial_rows;
        const uint32_t runs = arguments.dq_width / convert_columns, number = workgroup / (2 * rows);
        const bool values = workgroup % 2;
        const TileCoordinate coordinate = block_of_keys(arguments, number / runs);
        const Sequence sequence = sequence_of(coordinate.batch, arguments.mask, arguments.packed);
        const int thread = thread_id(),
                  first_row = coordinate.tile * statistics_block + workgroup / 2 % rows * partial_rows,
                  row = thread / wave_lanes * 8 + thread % 8,
                  col = number % runs * convert_columns + thread % wave_lanes / 8 * per_lane;
        if (first_row + row >= sequence.mask.n_k ||
            col >= (values ? arguments.value_dim : arguments.head_dim))
            return;
        const float* partial =
            split_partials_at(arguments, sequence, coordinate.batch, coordinate.head, 0, first_row, values) +
            partial_index(row, col);
        using Half = vec<float, per_lane / 2>;
        Half low{}, high{};
        // Number of loads in flight at a time.
#pragma clang loop unroll_count(4)
        for (int split = 0; split < arguments.splits; ++split, partial += arguments.floats_per_split) {
            low += *reinterpret_cast<const Half*>(partial);
            high += *reinterpret_cast<const Half*>(partial + partial_index(0, per_lane / 2));
        }
        const float factor_of_values = arguments.dropout.seed ? arguments.dropout.scale : 1.0f;
        *element(values ? arguments.grad_v : arguments.grad_k, sequence, coordinate.head,
                 sequence.first_k + first_row + row, col) =
            __builtin_convertvector(__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7) *
                                        (values ? factor_of_values : arguments.scale),
                                    Run);
    }
};

}  // namespace hipkittens::attention
