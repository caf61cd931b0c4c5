// kernels/norm/backward.h: gradients of layer_norm and rms_norm, all sums in a fixed order.
// SPDX-License-Identifier: MIT
#pragma once
#include "row.h"

namespace hipkittens::norm {

// dz = rstd (g - mean(g) - xhat mean(g xhat)) + dsum with g = dy weight and xhat = (z - mean) rstd; without the term
// mean(g) for rms_norm.
template <class T, RowShape shape>
KITTENS_DEVICE void backward(const BackwardArguments& given, kittens::shared_byte* lds) {
    using Row = Worker<shape>;
    constexpr bool sums = sums_columns(shape), held = holds_gradient(shape);
    const Row worker;
    const int cols = given.rows.cols;
    const float scale = 1.0f / static_cast<float>(cols);
    RowSums<Row::waves> sum_of_row(lds);
    eight sum_weight[sums ? Row::chunks : 1] = {}, sum_bias[sums ? Row::chunks : 1] = {};

    for (uint32_t row = worker.first_row; row < given.rows.count; row += given.workers) {
        // As in forward.h: not all of them fit into scalar registers at a time.
        const BackwardArguments arguments = kittens::arguments_again<BackwardArguments>();
        const float mean = arguments.mean ? arguments.mean[row] : 0.0f, rstd = arguments.rstd[row];
        auto xhat_of = [&](int c, bool wide) {
            return (load_eight<T>(row_of<T>(arguments.z, arguments.rows, row),
                                  (worker.column() + c * Row::chunk_step), wide) -
                    mean) *
                   rstd;
        };
        auto dy_of = [&](int c, bool wide) {
            return load_eight<T>(row_of<T>(arguments.dy, arguments.rows, row),
                                 (worker.column() + c * Row::chunk_step), wide);
        };
        auto weighted = [&](eight dy, int c) {
            if (arguments.weight)
                with_type(arguments.parameter_type, [&](auto zero) {
                    using Parameter = decltype(zero);
                    dy *= load_eight<Parameter>(parameters<Parameter>(arguments.weight, cols),
                                                (worker.column() + c * Row::chunk_step),
                                                arguments.wide_parameters);
                });
            return dy;
        };
        const BackwardArguments last = kittens::arguments_again<BackwardArguments>();
        auto finish = [&](int c, eight gradient) {
            if (last.dsum.data)
                gradient += load_eight<T>(row_of<T>(last.dsum, last.rows, row),
                                          (worker.column() + c * Row::chunk_step), last.wide);
            if (last.dresidual)
                store_eight<T>(gradient, dense_row<T>(last.dresidual, row, cols),
                               (worker.column() + c * Row::chunk_step), last.wide);
            if (last.dropout.seed)
                gradient *= kept(last.dropout, row, (worker.column() + c * Row::chunk_step));
            store_eight<T>(gradient, dense_row<T>(last.dx, row, cols),
                           (worker.column() + c * Row::chunk_step), last.wide);
        };

        eight xhat[held ? Row::chunks : 1], gradient[held ? Row::chunks : 1];
        eight sums_of_lane = {}, products_of_lane = {};
        auto add = [&](eight g, eight x) {
            sums_of_lane += g;
            products_of_lane = fused(g, x, products_of_lane);
        };
        if constexpr (held) {
            if (arguments.wide) {
#pragma unroll
                for (int c = 0; c < Row::chunks; ++c)
                    xhat[c] = xhat_of(c, true), gradient[c] = dy_of(c, true);
            } else {
#pragma unroll
                for (int c = 0; c < Row::chunks; ++c)
                    xhat[c] = xhat_of(c, false), gradient[c] = dy_of(c, false);
            }
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c) {
                if constexpr (sums) {
                    sum_weight[c] = fused(gradient[c], xhat[c], sum_weight[c]);
                    sum_bias[c] += gradient[c];
                }
                gradient[c] = weighted(gradient[c], c);
                add(gradient[c], xhat[c]);
            }
        } else {
#pragma clang loop unroll(disable)
            for (int c = 0; c < Row::chunks; ++c) {
                add(weighted(dy_of(c, arguments.wide), c), xhat_of(c, arguments.wide));
            }
        }
        const float product = sum_of_row(sum_of(products_of_lane)) * scale;
        const float sum = arguments.mean ? sum_of_row(sum_of(sums_of_lane)) * scale : 0.0f;
        if constexpr (held) {
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c)
                finish(c, fused(xhat[c], -product, gradient[c] - sum) * rstd);
        } else {
#pragma clang loop unroll(disable)
            for (int c = 0; c < Row::chunks; ++c) {
                const eight value = weighted(dy_of(c, arguments.wide), c);
                finish(c, fused(xhat_of(c, arguments.wide), -product, value - sum) * rstd);
            }
        }
    }
    if constexpr (sums) {
        auto store = [&](float* partial, const auto& values) {
            const buffer destination = dense_row<float>(partial, worker.first_row, cols);
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c)
                store_eight<float>(values[c], destination, (worker.column() + c * Row::chunk_step),
                                   given.wide);
        };
        if (worker.first_row < given.workers) {
            if (given.partial_weight) store(given.partial_weight, sum_weight);
            if (given.partial_bias) store(given.partial_bias, sum_bias);
        }
    }
}

// The same partial sums, with columns in place of rows spread over the workgroups.
template <class T>
KITTENS_DEVICE void sum_columns(const BackwardArguments& arguments) {
    const uint32_t worker = kittens::workgroup_id_y() * column_waves + kittens::wave_id();
    const int column = kittens::workgroup_id_x() * columns_per_wave + kittens::lane_id() * 8;
    if (worker >= arguments.workers) return;
    eight sum_weight = {}, sum_bias = {};
    for (uint32_t row = worker; row < arguments.rows.count; row += arguments.workers) {
        const float mean = arguments.mean ? arguments.mean[row] : 0.0f, rstd = arguments.rstd[row];
        const eight dy = load_eight<T>(row_of<T>(arguments.dy, arguments.rows, row), column, arguments.wide);
        if (arguments.partial_weight) {
            const eight z =
                load_eight<T>(row_of<T>(arguments.z, arguments.rows, row), column, arguments.wide);
            sum_weight = fused(dy, (z - mean) * rstd, sum_weight);
        }
        sum_bias += dy;
    }
    const int cols = arguments.rows.cols;
    if (arguments.partial_weight)
        store_eight<float>(sum_weight, dense_row<float>(arguments.partial_weight, worker, cols), column,
                           arguments.wide);
    if (arguments.partial_bias)
        store_eight<float>(sum_bias, dense_row<float>(arguments.partial_bias, worker, cols), column,
                           arguments.wide);
}

// A lane owns a column; wave w adds the partial sums w, w + 16, ..., and the first wave those of the waves.
KITTENS_DEVICE void reduce(const ReduceArguments& arguments, kittens::shared_byte* lds) {
    const int lane = kittens::lane_id(), wave = kittens::wave_id(), which = kittens::workgroup_id_y();
    const int column = kittens::workgroup_id_x() * reduce_columns + lane;
    const float* partial = which ? arguments.partial[1] : arguments.partial[0];
    void* result = which ? arguments.result[1] : arguments.result[0];
    float sum = 0;
    for (uint32_t worker = wave; worker < arguments.workers; worker += reduce_waves)
        sum += kittens::buffer_load<float>(dense_row<float>(partial, worker, arguments.cols), column * 4);
    kittens::lds_write(sum, lds + (wave * reduce_columns + lane) * 4);
    kittens::barrier();
    if (wave != 0) return;
    sum = 0;
#pragma unroll
    for (int other = 0; other < reduce_waves; ++other)
        sum += kittens::lds_read<float>(lds + (other * reduce_columns + lane) * 4);
    with_type(arguments.type, [&](auto zero) {
        using T = decltype(zero);
        const T value = static_cast<T>(sum);
        kittens::buffer_store(value, parameters<T>(result, arguments.cols),
                              column * static_cast<int>(sizeof(T)));
    });
}

}  // namespace hipkittens::norm
