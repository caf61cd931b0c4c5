// kernels/norm/forward.h: layer_norm and rms_norm, optionally preceded by dropout and the residual.
// SPDX-License-Identifier: MIT
#pragma once
#include "row.h"

namespace hipkittens::norm {

struct Moments {
    float mean, correction, rstd;
};

// Subtracts the mean from a row, except for a correction, which is the rounding error of the mean.
// Two passes over registers. The second one determines the error of the first mean, and removes it from both results
// (Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983, formula 1.7).
template <bool may_have_mean, int chunks, class Reduction, class Subtract>
KITTENS_DEVICE Moments moments(eight (&values)[chunks], bool has_mean, float per_column, float epsilon,
                               Reduction& row_reduction, const Subtract& subtract) {
    float mean = 0;
    if (has_mean) {
        eight sum = {};
#pragma unroll
        for (int c = 0; c < chunks; ++c) sum += values[c];
        mean = row_reduction.sum(sum_of(sum)) * per_column;
#pragma unroll
        for (int c = 0; c < chunks; ++c) subtract(c, mean);
    }
    eight sum = {}, squares = {};
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
        sum += values[c];
        squares = fused(values[c], values[c], squares);
    }
    if constexpr (!may_have_mean) {
        const float variance = row_reduction.sum(sum_of(squares)) * per_column;
        return {0, 0, kittens::hardware_reciprocal_square_root(variance + epsilon)};
    }
    float sums[2] = {sum_of(squares), sum_of(sum)};
    row_reduction.sum(sums);
    const float correction = has_mean ? sums[1] * per_column : 0.0f;
    const float variance = sums[0] * per_column - correction * correction;
    return {mean + correction, correction, kittens::hardware_reciprocal_square_root(variance + epsilon)};
}

// Parameter: the type of weight and bias if the arguments are plain; void: nothing is known about them.
template <class T, RowShape shape, class Parameter>
KITTENS_DEVICE void forward_rows(const ForwardArguments& given, kittens::shared_byte* lds) {
    using Row = Worker<shape>;
    constexpr bool plain = !kittens::same_type<Parameter, void>;
    // All loads of a row are in flight at once, those of weight and bias while the row is summed; a float bias is loaded when the
    // weight's registers are free.
    constexpr bool whole = plain && shape.chunks <= 4;
    constexpr bool early_bias = whole && !kittens::same_type<Parameter, float>;
    using Raw = kittens::raw_eight<kittens::choose<plain, Parameter, float>>;
    const Row worker;
    const int cols = given.rows.cols;
    RowReduction<Row::waves> row_reduction(lds);
    for (uint32_t row = worker.first_row; row < given.rows.count; row += given.workers) {
        // Reloaded for each row and each half of its work: all of them together do not fit into scalar registers.
        auto known = [](ForwardArguments arguments) {
            if constexpr (plain) {
                arguments.wide = arguments.wide_parameters = true;
                arguments.rows.inner_count = arguments.rows.count;
            }
            return arguments;
        };
        const ForwardArguments arguments = known(kittens::reload_arguments<ForwardArguments>());
        eight values[Row::chunks];
        // Keeps the loads of a long row from all being in flight at once, each with its own registers.
        auto in_order = [] {
            if constexpr (Row::chunks > 4) kittens::schedule_fence();
        };
        const int first_column = worker.column();
        auto column_of = [&](int c) {
            return (whole ? first_column : worker.column()) + c * Row::chunk_step;
        };
        auto read = [&](const RowTensor& tensor, const auto& take) {
            const buffer source = row_of<T>(tensor, arguments.rows, row);
            const auto load = [&](bool wide) {
#pragma unroll
                for (int c = 0; c < Row::chunks; ++c) {
                    take(c, load_eight<T>(source, column_of(c), wide));
                    in_order();
                }
            };
            if (Row::chunks > 4)
                load(arguments.wide);
            else
                arguments.wide ? load(true) : load(false);
        };
        Raw weight[whole ? Row::chunks : 1], bias[whole ? Row::chunks : 1];
        auto load_whole = [&](auto& into, const buffer& source, auto zero) {
            using Type = decltype(zero);
            kittens::load_raw_row<Type>(into, source, first_column * static_cast<uint32_t>(sizeof(Type)),
                                        Row::chunk_step * static_cast<uint32_t>(sizeof(Type)));
        };
        // If there is none, nothing is in range and zeros are read: no register is read that was not loaded.
        auto load_parameters = [&](const void* data, auto& into) {
            if constexpr (whole) load_whole(into, parameters<Parameter>(data, data ? cols : 0), Parameter());
        };
        if constexpr (whole) {
            kittens::raw_eight<T> x[Row::chunks], residual[Row::chunks];
            auto issue = [&](const RowTensor& tensor, auto& into) {
                load_whole(into, row_of<T>(tensor, arguments.rows, row), T());
            };
            issue(arguments.x, x);
            // Float rows take as many registers as the random numbers leave: there, the residual is loaded after them.
            if (kittens::is_16bit<T> && arguments.residual.data) issue(arguments.residual, residual);
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c) values[c] = kittens::widened(x[c]);
            if (arguments.dropout.seed) {
#pragma unroll
                for (int c = 0; c < Row::chunks; ++c) values[c] *= kept(arguments.dropout, row, column_of(c));
            }
            if (arguments.residual.data) {
                if (!kittens::is_16bit<T>) issue(arguments.residual, residual);
#pragma unroll
                for (int c = 0; c < Row::chunks; ++c) values[c] += kittens::widened(residual[c]);
            }
        } else {
            read(arguments.x, [&](int c, eight loaded) { values[c] = loaded; });
            if (arguments.dropout.seed) {
#pragma unroll
                for (int c = 0; c < Row::chunks; ++c) {
                    values[c] *= kept(arguments.dropout, row, column_of(c));
                    in_order();
                }
            }
            if (arguments.residual.data)
                read(arguments.residual, [&](int c, eight loaded) {
                    values[c] += loaded;
                    if constexpr (Row::chunks > 4) kittens::materialize(values[c]);
                });
        }
        if (arguments.sum) {
            // The normalized value is the sum as it is returned, which backward reads.
            const buffer destination = dense_row<T>(arguments.sum, row, cols);
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c) {
                values[c] =
                    __builtin_convertvector(__builtin_convertvector(values[c], kittens::vec<T, 8>), eight);
                store_eight<T>(values[c], destination, column_of(c), arguments.wide);
            }
        }
        if constexpr (whole) {
            load_parameters(arguments.weight, weight);
            if constexpr (early_bias) load_parameters(arguments.bias, bias);
            kittens::schedule_fence();
        }

        const auto subtract = [&](int c, float mean) {
            in_order();
            // Past the end of the row there are zeros, which stay zero.
            const int column = column_of(c);
            if (plain) {
                values[c] -= column < cols ? mean : 0.0f;
            } else {
#pragma unroll
                for (int i = 0; i < 8; ++i) values[c][i] -= column + i < cols ? mean : 0.0f;
            }
        };
        const auto [mean, correction, rstd] = moments<true>(values, arguments.centred, arguments.per_column,
                                                            arguments.epsilon, row_reduction, subtract);
        if (arguments.rstd && worker.column() == 0) {
            arguments.rstd[row] = rstd;
            if (arguments.mean) arguments.mean[row] = mean;
        }

        const ForwardArguments last = known(kittens::reload_arguments<ForwardArguments>());
        const buffer destination = dense_row<T>(last.y, row, cols);
        if constexpr (whole) {
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c) values[c] = (values[c] - correction) * rstd;
            if (last.weight) {
#pragma unroll
                for (int c = 0; c < Row::chunks; ++c) values[c] *= kittens::widened(weight[c]);
            }
            if constexpr (!early_bias) {
                kittens::schedule_fence();
                load_parameters(last.bias, bias);
            }
            if (last.bias) {
#pragma unroll
                for (int c = 0; c < Row::chunks; ++c) values[c] += kittens::widened(bias[c]);
            }
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c) store_eight<T>(values[c], destination, column_of(c), true);
            continue;
        }
        auto finish = [&](int c, auto zero) {
            using Type = decltype(zero);
            const int column = column_of(c);
            eight result = (values[c] - correction) * rstd;
            if (last.weight)
                result *= load_eight<Type>(parameters<Type>(last.weight, cols), column, last.wide_parameters);
            if (last.bias)
                result += load_eight<Type>(parameters<Type>(last.bias, cols), column, last.wide_parameters);
            store_eight<T>(result, destination, column, last.wide);
        };
        if constexpr (Row::chunks > 4) {
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c) {
                if constexpr (plain)
                    finish(c, Parameter());
                else
                    with_type(last.parameter_type, [&](auto zero) { finish(c, zero); });
                in_order();
            }
        } else {
            with_type(last.parameter_type, [&](auto zero) {
#pragma unroll
                for (int c = 0; c < Row::chunks; ++c) finish(c, zero);
            });
        }
    }
}

template <class T, RowShape shape>
KITTENS_DEVICE void forward(const ForwardArguments& given, kittens::shared_byte* lds) {
    if (!given.plain)
        forward_rows<T, shape, void>(given, lds);
    else if (given.parameter_type == ElementType::f32)
        forward_rows<T, shape, float>(given, lds);
    else if constexpr (kittens::is_16bit<T>)
        forward_rows<T, shape, T>(given, lds);
}

}  // namespace hipkittens::norm
