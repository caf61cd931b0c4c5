// kernels/norm/backward.h: gradients of layer_norm and rms_norm, with all sums in a fixed order.
// SPDX-License-Identifier: MIT
#pragma once
#include "row.h"

namespace hipkittens::norm {

// The partial sums of a workgroup, from those of its rows' workers: waves with their own rows add theirs one after the other.
template <RowShape shape>
class PartialSums {
    static constexpr int chunks = shape.chunks, wave_bytes = chunks * 64 * 8 * 4;
    static constexpr bool shares = shape.waves == 1;

  public:
    static constexpr int lds_bytes = shares ? 2 * wave_bytes : 4;
    eight weight[chunks] = {}, bias[chunks] = {};

    KITTENS_DEVICE void store(const BackwardArguments& arguments, const Worker<shape>& worker,
                              kittens::shared_byte* lds) {
        if constexpr (shares) {
            constexpr int last = shape.rows_per_workgroup() - 1;
            const int wave = kittens::wave_id();
            for (int turn = 0; turn <= last; ++turn) {
                if (wave == turn) {
                    if (turn > 0)
                        each(
                            [&](eight& sums, kittens::shared_byte* low) {
                                sums.lo += kittens::lds_read<four>(low);
                                sums.hi += kittens::lds_read<four>(low + 1024);
                            },
                            lds);
                    if (turn < last)
                        each(
                            [&](const eight& sums, kittens::shared_byte* low) {
                                kittens::lds_write(four(sums.lo), low);
                                kittens::lds_write(four(sums.hi), low + 1024);
                            },
                            lds);
                }
                kittens::barrier();
            }
            if (wave != last) return;
        }
        const auto put = [&](float* partial, const eight(&values)[chunks]) {
            const buffer destination =
                dense_row<float>(partial, kittens::workgroup_id_x(), arguments.rows.cols);
#pragma unroll
            for (int c = 0; c < chunks; ++c)
                store_eight<float>(values[c], destination, worker.column() + c * Worker<shape>::chunk_step,
                                   arguments.wide);
        };
        if (arguments.partial_weight) put(arguments.partial_weight, weight);
        if (arguments.partial_bias) put(arguments.partial_bias, bias);
    }

  private:
    using four = kittens::vec<float, 4>;
    template <class Visit>
    KITTENS_DEVICE void each(const Visit& visit, kittens::shared_byte* lds) {
        kittens::shared_byte* first = lds + kittens::lane_id() * 16;
#pragma unroll
        for (int c = 0; c < chunks; ++c) {
            visit(weight[c], first + c * 2048);
            visit(bias[c], first + c * 2048 + wave_bytes);
        }
    }
};

// dz = rstd (g - mean(g) - xhat mean(g xhat)) + dsum with g = dy weight and xhat = (z - mean) rstd; without the term
// mean(g) for rms_norm.
template <class T, RowShape shape>
KITTENS_DEVICE void backward_rows(const BackwardArguments& given, kittens::shared_byte* lds) {
    using Row = Worker<shape>;
    constexpr bool sums = sums_columns(shape), held = holds_gradient(shape);
    const Row worker;
    const int cols = given.rows.cols;
    const float scale = given.per_column;
    RowReduction<Row::waves> row_reduction(lds);
    PartialSums<sums ? shape : RowShape{1, 1, 1, 64}> partial;

    for (uint32_t row = worker.first_row; row < given.rows.count; row += given.workers) {
        // As in forward.h: not all of them fit into scalar registers at a time.
        const BackwardArguments arguments = kittens::reload_arguments<BackwardArguments>();
        const float mean = arguments.mean ? arguments.mean[row] : 0.0f, rstd = arguments.rstd[row];
        auto column_of = [&](int c) { return worker.column() + c * Row::chunk_step; };
        auto xhat_of = [&](int c, bool wide) {
            return (load_eight<T>(row_of<T>(arguments.z, arguments.rows, row), column_of(c), wide) - mean) *
                   rstd;
        };
        auto dy_of = [&](int c, bool wide) {
            return load_eight<T>(row_of<T>(arguments.dy, arguments.rows, row), column_of(c), wide);
        };
        auto weighted = [&](eight dy, int c) {
            if (arguments.weight)
                with_type(arguments.parameter_type, [&](auto zero) {
                    using Parameter = decltype(zero);
                    dy *= load_eight<Parameter>(parameters<Parameter>(arguments.weight, cols), column_of(c),
                                                arguments.wide_parameters);
                });
            return dy;
        };
        const BackwardArguments last = kittens::reload_arguments<BackwardArguments>();
        auto finish = [&](int c, eight gradient) {
            if (last.dsum.data)
                gradient += load_eight<T>(row_of<T>(last.dsum, last.rows, row), column_of(c), last.wide);
            if (last.dresidual)
                store_eight<T>(gradient, dense_row<T>(last.dresidual, row, cols), column_of(c), last.wide);
            if (last.dropout.seed) gradient *= kept(last.dropout, row, column_of(c));
            store_eight<T>(gradient, dense_row<T>(last.dx, row, cols), column_of(c), last.wide);
        };

        eight xhat[held ? Row::chunks : 1], gradient[held ? Row::chunks : 1];
        eight sums_of_lane = {}, products_of_lane = {};
        auto add = [&](eight g, eight x) {
            sums_of_lane += g;
            products_of_lane = fused(g, x, products_of_lane);
        };
        if constexpr (held) {
            const auto load = [&](bool wide) {
#pragma unroll
                for (int c = 0; c < Row::chunks; ++c)
                    xhat[c] = xhat_of(c, wide), gradient[c] = dy_of(c, wide);
            };
            arguments.wide ? load(true) : load(false);
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c) {
                if constexpr (sums) {
                    partial.weight[c] = fused(gradient[c], xhat[c], partial.weight[c]);
                    partial.bias[c] += gradient[c];
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
        const float product = row_reduction.sum(sum_of(products_of_lane)) * scale;
        const float sum = arguments.mean ? row_reduction.sum(sum_of(sums_of_lane)) * scale : 0.0f;
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
    if constexpr (sums) partial.store(given, worker, lds);
}

// The same for rows of 16-bit elements in the common case, `plain`, with the next row in flight while the current one
// is computed.
template <class T, RowShape shape>
KITTENS_DEVICE void backward_plain(const BackwardArguments& arguments, kittens::shared_byte* lds) {
    using Row = Worker<shape>;
    using Raw = kittens::raw_eight<T>;
    const Row worker;
    const int cols = arguments.rows.cols, column = worker.column();
    RowReduction<Row::waves> row_reduction(lds);
    PartialSums<shape> partial;
    // Without a row or a tensor nothing is in range, and zeros are read: a condition would keep registers occupied.
    const auto read = [&](const void* data, int64_t stride, uint32_t row, bool is_there,
                          Raw(&into)[Row::chunks]) {
        const buffer source = {
            static_cast<const char*>(data) + row * stride * static_cast<int64_t>(sizeof(T)),
            is_there ? static_cast<uint32_t>(cols * sizeof(T)) : 0};
        kittens::load_raw_row<T>(into, source, column * static_cast<uint32_t>(sizeof(T)),
                                 Row::chunk_step * static_cast<uint32_t>(sizeof(T)));
    };
    const auto statistic = [&](const float* data, uint32_t row) {
        return kittens::buffer_load<float>(
            {reinterpret_cast<const char*>(data), data ? arguments.rows.count * 4 : 0}, row * 4);
    };
    Raw weight[Row::chunks], z[Row::chunks], dy[Row::chunks];
    float next_mean, next_rstd;
    const auto start = [&](uint32_t row) {
        next_rstd = statistic(arguments.rstd, row);
        next_mean = statistic(arguments.mean, row);
        const bool is_there = row < arguments.rows.count;
        read(arguments.z.data, arguments.z.inner, row, is_there, z);
        read(arguments.dy.data, arguments.dy.inner, row, is_there, dy);
    };
    start(worker.first_row);
    read(arguments.weight, 0, 0, true, weight);
    for (uint32_t row = worker.first_row; row < arguments.rows.count; row += arguments.workers) {
        const float mean = next_mean, rstd = next_rstd;
        eight xhat[Row::chunks], gradient[Row::chunks];
#pragma unroll
        for (int c = 0; c < Row::chunks; ++c) {
            xhat[c] = (kittens::widened(z[c]) - mean) * rstd;
            gradient[c] = kittens::widened(dy[c]);
        }
        Raw dsum[Row::chunks];
        read(arguments.dsum.data, arguments.dsum.inner, row, arguments.dsum.data != nullptr, dsum);
        start(row + arguments.workers);
        kittens::schedule_fence();
        eight sums_of_lane = {}, products_of_lane = {};
#pragma unroll
        for (int c = 0; c < Row::chunks; ++c) {
            partial.weight[c] = fused(gradient[c], xhat[c], partial.weight[c]);
            partial.bias[c] += gradient[c];
            gradient[c] *= kittens::widened(weight[c]);
            sums_of_lane += gradient[c];
            products_of_lane = fused(gradient[c], xhat[c], products_of_lane);
        }
        float sums[2] = {sum_of(products_of_lane), sum_of(sums_of_lane)};
        row_reduction.sum(sums);
        const float product = sums[0] * arguments.per_column;
        const float sum = arguments.mean ? sums[1] * arguments.per_column : 0.0f;
        const buffer destination = dense_row<T>(arguments.dx, row, cols);
#pragma unroll
        for (int c = 0; c < Row::chunks; ++c)
            store_eight<T>(fused(xhat[c], -product, gradient[c] - sum) * rstd + kittens::widened(dsum[c]),
                           destination, column + c * Row::chunk_step, true);
    }
    partial.store(arguments, worker, lds);
}

template <class T, RowShape shape>
KITTENS_DEVICE void backward(const BackwardArguments& given, kittens::shared_byte* lds) {
    if constexpr (kittens::is_16bit<T> && sums_columns(shape)) {
        if (given.plain) return backward_plain<T, shape>(given, lds);
    }
    backward_rows<T, shape>(given, lds);
}

// The same partial sums, with columns instead of rows distributed over the workgroups.
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

// A lane owns a column; wave w adds the partial sums w, w + 16, ..., and the first wave adds those of the waves.
KITTENS_DEVICE void reduce(const ReduceArguments& arguments, kittens::shared_byte* lds) {
    const int lane = kittens::lane_id(), wave = kittens::wave_id(), which = kittens::workgroup_id_y();
    const int column = kittens::workgroup_id_x() * reduce_columns + lane;
    const float* partial = which ? arguments.partial[1] : arguments.partial[0];
    void* result = which ? arguments.result[1] : arguments.result[0];
    float sum = 0;
#pragma unroll 16
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
