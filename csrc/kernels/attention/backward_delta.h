// kernels/attention/backward_delta.h: per query, what its gradients need besides the scores.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_config.h"
#include "forward_tiles.h"

namespace hipkittens::attention {

// Sixteen lanes take a query, 8 elements each at a time.
template <class T>
struct Delta {
    static constexpr int lanes = 16, per_lane = kittens::chunk_bytes / sizeof(T);
    static constexpr int rows_per_pass = delta_threads / lanes;
    static_assert(statistics_block % rows_per_pass == 0, "a workgroup takes a block of rows in whole passes");

    KITTENS_DEVICE static float dot(kittens::buffer out, kittens::buffer grad_out, uint32_t out_row,
                                    uint32_t grad_row, int col, int cols) {
        float sum = 0;
#pragma clang loop unroll(disable)
        for (; col < cols; col += lanes * per_lane) {
            using Values = kittens::vec<T, per_lane>;
            const Values o = kittens::buffer_load<Values>(out, out_row + col * sizeof(T));
            const Values g = kittens::buffer_load<Values>(grad_out, grad_row + col * sizeof(T));
#pragma unroll
            for (int e = 0; e < per_lane; ++e)
                sum = __builtin_fmaf(static_cast<float>(o[e]), static_cast<float>(g[e]), sum);
        }
        sum += kittens::rotate_in_16<8>(sum);
        sum += kittens::rotate_in_16<4>(sum);
        sum += kittens::rotate_in_16<2>(sum);
        return sum + kittens::rotate_in_16<1>(sum);
    }

    KITTENS_DEVICE static void run(const BackwardArguments& arguments) {
        constexpr float log2_e = 1.4426950408889634f;
        const TilePlace place = place_of_workgroup(kittens::workgroup_id_x(), arguments.order);
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
        const int64_t statistics = head * arguments.statistics_rows +
                                   (is_packed ? statistics_row(sequence.first_q, place.batch) : 0);
        const int64_t rows = is_packed ? arguments.packed.rows_q : n_q;
        const int lane = kittens::thread_id() % lanes;
#pragma clang loop unroll(disable)
        for (int pass = 0; pass < statistics_block; pass += rows_per_pass) {
            const int row = pass + kittens::thread_id() / lanes;
            const bool inside = begin + row < n_q;
            // Lanes beyond the last row read nothing: with a row stride of 0 the bounds alone would not stop them.
            const float sum = dot(out_view, grad_view, row * static_cast<uint32_t>(out.row_bytes()),
                                  row * static_cast<uint32_t>(grad_out.row_bytes()), lane * per_lane,
                                  inside ? arguments.head_dim : 0);
            if (lane != 0) continue;
            float lse = __builtin_inff(), delta = 0;
            if (inside) {
                const int64_t at = head * rows + sequence.first_q + begin + row;
                const float natural = arguments.lse[at];
                if (natural != -__builtin_inff()) {
                    lse = natural * log2_e;
                    delta = arguments.grad_lse ? sum - arguments.grad_lse[at] : sum;
                }
            }
            const int64_t at = statistics + begin + row;
            arguments.lse_log2[at] = lse;
            arguments.delta[at] = delta;
        }
    }
};

}  // namespace hipkittens::attention
