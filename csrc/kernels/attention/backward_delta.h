// kernels/attention/backward_delta.h: the per-query values that the gradients need in addition to P and dP.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "backward_config.h"
#include "dq_accumulator.h"
#include "forward_tiles.h"

namespace hipkittens::attention {

// Workgroups process blocks of queries and, after them, blocks of keys where dQ is accumulated in memory (dq_accumulator.h).
// Sixteen lanes share a row, with 8 elements per lane at a time.
template <ElementConfig config>
struct DeltaKernel {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = delta_threads, waves_per_simd = 1, lds_bytes = 0;
    static constexpr int lanes = 16, per_lane = b128_bytes / sizeof(T);
    static constexpr int rows_per_pass = delta_threads / lanes;
    static_assert(statistics_block % rows_per_pass == 0, "a workgroup takes a block of rows in whole passes");
    using Values = vec<T, per_lane>;
    using Matrix = global_matrix<const T>;

    // Reductions over the lane's elements of a row of each of the two tensors.
    struct Row {
        float product = 0, first_square = 0, second_largest = 0;
    };
    // Rows past the last one read nothing: with a row stride of 0, the buffer bounds alone would not prevent it.
    KITTENS_DEVICE static Row row_of(const Matrix& of_first, const Matrix& of_second, int begin, int number) {
        const buffer first = of_first.window(begin, 0).view(), second = of_second.window(begin, 0).view();
        const uint32_t first_row = number * static_cast<uint32_t>(of_first.row_bytes()),
                       second_row = number * static_cast<uint32_t>(of_second.row_bytes());
        const bool inside = begin + number < of_first.rows;
        const int first_cols = inside ? of_first.cols : 0, second_cols = inside ? of_second.cols : 0,
                  cols = first_cols > second_cols ? first_cols : second_cols;
        int col = thread_id() % lanes * per_lane;
        Row row;
#pragma clang loop unroll(disable)
        for (; col < cols; col += lanes * per_lane) {
            const uint32_t byte = col * sizeof(T);
            const Values a = buffer_load<Values>(first, col < first_cols ? first_row + byte : out_of_range),
                         b = buffer_load<Values>(second,
                                                 col < second_cols ? second_row + byte : out_of_range);
#pragma unroll
            for (int e = 0; e < per_lane; ++e) {
                const float x = static_cast<float>(a[e]), y = static_cast<float>(b[e]);
                row.product = __builtin_fmaf(x, y, row.product);
                row.first_square = __builtin_fmaf(x, x, row.first_square);
                row.second_largest = larger(row.second_largest, absolute_value(y));
            }
        }
        return row;
    }

    // How the output of a query is divided between its keys and the sink.
    struct Shares {
        float start, keys,
            sink;  // -LSE including the sink, base 2; the sum of P over all keys, and P of the sink
    };
    KITTENS_DEVICE static Shares shares_of(const BackwardArguments& arguments, float lse, int head) {
        constexpr float log2_e = 1.4426950408889634f;
        const float of_keys = log2_e * lse;
        if (!arguments.sinks) return {-of_keys, 1, 0};
        // Infinite or not, a sink this large leaves nothing to the keys.
        constexpr float largest = 0x1p100f;
        const float of_sink = smaller(log2_e * arguments.sinks[head], largest),
                    base = larger(of_keys, of_sink);
        const float both =
            base + logarithm_base_2(exponential_base_2(of_keys - base) + exponential_base_2(of_sink - base));
        return {-both, exponential_base_2(of_keys - both), exponential_base_2(of_sink - both)};
    }

    KITTENS_DEVICE static void run(const BackwardArguments& arguments) { run_blocks<DeltaKernel>(arguments); }

    KITTENS_DEVICE static void of_queries(const BackwardArguments& arguments,
                                          const TileCoordinate& coordinate) {
        const Sequence sequence = sequence_of(coordinate.batch, arguments.mask, arguments.packed);
        const int begin = coordinate.tile * statistics_block, n_q = sequence.mask.n_q;
        if (begin >= n_q) return;
        const Matrix out = query_matrix<T>(arguments.out, sequence, coordinate.head, arguments.value_dim),
                     grad_out =
                         query_matrix<T>(arguments.grad_out, sequence, coordinate.head, arguments.value_dim);
        const int64_t head = sequence.batch * arguments.heads + coordinate.head;
        const int64_t statistics =
            first_statistics_row(arguments, sequence, coordinate.batch, coordinate.head) + begin;
        const int64_t rows = arguments.packed.first_q ? arguments.packed.rows_q : n_q;
        if (arguments.dq_accumulator) {
            int32_t* accumulator = arguments.dq_accumulator + statistics * arguments.dq_width;
            for (int i = thread_id() * 4; i < statistics_block * arguments.dq_width; i += delta_threads * 4)
                *reinterpret_cast<vec<int32_t, 4>*>(accumulator + i) = vec<int32_t, 4>{};
        }
        float of_sink = 0;
#pragma clang loop unroll(disable)
        for (int pass = 0; pass < statistics_block; pass += rows_per_pass) {
            const int row = pass + thread_id() / lanes;
            const bool inside = begin + row < n_q;
            const Row own = row_of(grad_out, out, begin, row);
            const float product = sum_of_16_lanes(own.product), square = sum_of_16_lanes(own.first_square);
            if (thread_id() % lanes != 0) continue;
            float start = no_start, delta = 0, keys = 1;
            if (inside) {
                const int64_t at = head * rows + sequence.first_q + begin + row;
                const float lse = arguments.lse[at];
                if (lse != -__builtin_inff()) {
                    const Shares shares = shares_of(arguments, lse, coordinate.head);
                    start = shares.start, keys = shares.keys, delta = -product;
                    of_sink = __builtin_fmaf(-product, shares.sink, of_sink);
                    if (arguments.grad_lse) delta += arguments.grad_lse[at];
                }
            }
            const auto set = [&](Statistic statistic, float value) {
                arguments.statistics[statistic_index(statistic, statistics + row)] = value;
            };
            set(Statistic::start, start);
            set(Statistic::delta, delta);
            set(Statistic::norm, keys * hardware_square_root(square));
            set(Statistic::dq_delta, keys * absolute_value(delta));
        }
        if (arguments.sinks)
            store_sink_partial(of_sink, arguments.sink_partials + statistics / statistics_block);
    }
    // The sum over the first lane of every 16, in their order.
    KITTENS_DEVICE static void store_sink_partial(float of_sink, float* partial) {
        static __attribute__((shared)) float of_rows[rows_per_pass];
        if (thread_id() % lanes == 0) of_rows[thread_id() / lanes] = of_sink;
        barrier();
        if (thread_id() != 0) return;
        float sum = 0;
#pragma unroll
        for (int row = 0; row < rows_per_pass; ++row) sum += of_rows[row];
        *partial = sum;
    }

    KITTENS_DEVICE static void of_keys(const BackwardArguments& arguments, uint32_t workgroup) {
        const TileCoordinate coordinate = block_of_keys(arguments, workgroup);
        const Sequence sequence = sequence_of(coordinate.batch, arguments.mask, arguments.packed);
        const int begin = coordinate.tile * statistics_block, n_k = sequence.mask.n_k;
        if (begin >= n_k) return;
        const Matrix k = key_matrix<T>(arguments.k, sequence, coordinate.head, arguments.head_dim),
                     v = key_matrix<T>(arguments.v, sequence, coordinate.head, arguments.value_dim);
        KeyBounds bounds{0, 0};
#pragma clang loop unroll(disable)
        for (int pass = 0; pass < statistics_block; pass += rows_per_pass) {
            const Row own = row_of(v, k, begin, pass + thread_id() / lanes);
            bounds.include({own.second_largest, hardware_square_root(sum_of_16_lanes(own.first_square))});
        }
        bounds.join_wave();
        static __attribute__((shared)) float of_waves[delta_threads / wave_lanes][2];
        if (lane_id() == 0) {
            of_waves[wave_id()][0] = bounds.k;
            of_waves[wave_id()][1] = bounds.v;
        }
        barrier();
        if (thread_id() == 0) {
            for (const auto& wave : of_waves) bounds.include({wave[0], wave[1]});
            bounds_at(arguments, sequence, coordinate.batch, coordinate.head)[coordinate.tile] = bounds;
        }
    }
};

}  // namespace hipkittens::attention
