// kernels/attention/backward_delta.h: per query, what its gradients need besides the scores.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_config.h"
#include "forward_tiles.h"
#include "query_sums.h"

namespace hipkittens::attention {

// Workgroups take blocks of queries, and after them blocks of keys where dQ is added up in memory (query_sums.h). Sixteen
// lanes take a row, 8 elements each at a time.
template <class T>
struct Delta {
    static constexpr int lanes = 16, per_lane = kittens::b128_bytes / sizeof(T);
    static constexpr int rows_per_pass = delta_threads / lanes;
    static_assert(statistics_block % rows_per_pass == 0, "a workgroup takes a block of rows in whole passes");
    using Values = kittens::vec<T, per_lane>;

    // Of the lane's elements of two rows.
    struct Row {
        float product = 0, first_square = 0, second_largest = 0;
    };
    KITTENS_DEVICE static Row row_of(kittens::buffer first, kittens::buffer second, uint32_t first_row,
                                     uint32_t second_row, int col, int cols) {
        Row row;
#pragma clang loop unroll(disable)
        for (; col < cols; col += lanes * per_lane) {
            const Values a = kittens::buffer_load<Values>(first, first_row + col * sizeof(T));
            const Values b = kittens::buffer_load<Values>(second, second_row + col * sizeof(T));
#pragma unroll
            for (int e = 0; e < per_lane; ++e) {
                const float x = static_cast<float>(a[e]), y = static_cast<float>(b[e]);
                row.product = __builtin_fmaf(x, y, row.product);
                row.first_square = __builtin_fmaf(x, x, row.first_square);
                row.second_largest = kittens::larger(row.second_largest, kittens::absolute_value(y));
            }
        }
        return row;
    }
    KITTENS_DEVICE static float sum_of_16(float value) {
        value += kittens::rotate_in_16<8>(value);
        value += kittens::rotate_in_16<4>(value);
        value += kittens::rotate_in_16<2>(value);
        return value + kittens::rotate_in_16<1>(value);
    }

    KITTENS_DEVICE static void run(const BackwardArguments& arguments) {
        const uint32_t workgroup = kittens::workgroup_id_x();
        const auto queries =
            static_cast<uint32_t>(arguments.order.tiles) * arguments.order.heads * arguments.order.batch;
        if (workgroup < queries)
            of_queries(arguments, coordinate_of_workgroup(workgroup, arguments.order));
        else
            of_keys(arguments, block_of_keys(arguments, workgroup - queries));
    }

  private:
    KITTENS_DEVICE static void of_queries(const BackwardArguments& arguments, const TileCoordinate& place) {
        const Sequence sequence = sequence_of(place.batch, arguments.mask, arguments.packed);
        const int begin = place.tile * statistics_block, n_q = sequence.mask.n_q;
        if (begin >= n_q) return;
        const bool is_packed = arguments.packed.first_q;
        const auto matrix = [&](const TensorArgument& tensor) {
            return matrix_of<T>(tensor, sequence.batch, sequence.first_q, place.head, n_q,
                                arguments.head_dim);
        };
        const auto out = matrix(arguments.out), grad_out = matrix(arguments.grad_out);
        const kittens::buffer out_view = out.window(begin, 0).view(),
                              grad_view = grad_out.window(begin, 0).view();
        const int64_t head = sequence.batch * arguments.heads + place.head;
        const int64_t statistics = head * arguments.statistics_rows + begin +
                                   (is_packed ? statistics_row(sequence.first_q, place.batch) : 0);
        const int64_t rows = is_packed ? arguments.packed.rows_q : n_q;
        if (arguments.sums) {
            int32_t* sums = arguments.sums + statistics * arguments.sums_width;
            for (int i = kittens::thread_id() * 4; i < statistics_block * arguments.sums_width;
                 i += delta_threads * 4)
                *reinterpret_cast<kittens::vec<int32_t, 4>*>(sums + i) = kittens::vec<int32_t, 4>{};
        }
        const int lane = kittens::thread_id() % lanes;
#pragma clang loop unroll(disable)
        for (int pass = 0; pass < statistics_block; pass += rows_per_pass) {
            const int row = pass + kittens::thread_id() / lanes;
            const bool inside = begin + row < n_q;
            // Lanes beyond the last row read nothing: with a row stride of 0 the bounds alone would not stop them.
            const Row own = row_of(grad_view, out_view, row * static_cast<uint32_t>(grad_out.row_bytes()),
                                   row * static_cast<uint32_t>(out.row_bytes()), lane * per_lane,
                                   inside ? arguments.head_dim : 0);
            const float product = sum_of_16(own.product), square = sum_of_16(own.first_square);
            if (lane != 0) continue;
            constexpr float log2_e = 1.4426950408889634f;
            float start = no_start, delta = 0;
            if (inside) {
                const int64_t at = head * rows + sequence.first_q + begin + row;
                const float lse = arguments.lse[at];
                if (lse != -__builtin_inff()) {
                    start = -log2_e * lse;
                    delta = arguments.grad_lse ? arguments.grad_lse[at] - product : -product;
                }
            }
            const auto set = [&](Statistic statistic, float value) {
                arguments.statistics[statistic_index(statistic, statistics + row)] = value;
            };
            set(Statistic::start, start);
            set(Statistic::delta, delta);
            set(Statistic::norm, kittens::hardware_square_root(square));
            set(Statistic::zero, 0);
        }
    }

    KITTENS_DEVICE static void of_keys(const BackwardArguments& arguments, const TileCoordinate& place) {
        const Sequence sequence = sequence_of(place.batch, arguments.mask, arguments.packed);
        const int begin = place.tile * statistics_block, n_k = sequence.mask.n_k;
        if (begin >= n_k) return;
        const auto matrix = [&](const TensorArgument& tensor) {
            return matrix_of<T>(tensor, sequence.batch, sequence.first_k, place.head, n_k,
                                arguments.head_dim);
        };
        const auto k = matrix(arguments.k), v = matrix(arguments.v);
        const kittens::buffer k_view = k.window(begin, 0).view(), v_view = v.window(begin, 0).view();
        const int lane = kittens::thread_id() % lanes;
        KeyBounds bounds{0, 0};
#pragma clang loop unroll(disable)
        for (int pass = 0; pass < statistics_block; pass += rows_per_pass) {
            const int row = pass + kittens::thread_id() / lanes;
            const Row own = row_of(v_view, k_view, row * static_cast<uint32_t>(v.row_bytes()),
                                   row * static_cast<uint32_t>(k.row_bytes()), lane * per_lane,
                                   begin + row < n_k ? arguments.head_dim : 0);
            bounds.include({own.second_largest, kittens::hardware_square_root(sum_of_16(own.first_square))});
        }
        bounds.join_wave();
        static __attribute__((shared)) float of_waves[delta_threads / kittens::wave_lanes][2];
        if (kittens::lane_id() == 0) {
            of_waves[kittens::wave_id()][0] = bounds.k;
            of_waves[kittens::wave_id()][1] = bounds.v;
        }
        kittens::barrier();
        if (kittens::thread_id() == 0) {
            for (const auto& wave : of_waves) bounds.include({wave[0], wave[1]});
            bounds_at(arguments, sequence, place.batch, place.head)[place.tile] = bounds;
        }
    }
};

}  // namespace hipkittens::attention
