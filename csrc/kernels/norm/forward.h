// kernels/norm/forward.h: layer_norm and rms_norm, with dropout and the residual before them.
// SPDX-License-Identifier: MIT
#pragma once
#include "row.h"

namespace hipkittens::norm {

template <class T, RowShape shape>
KITTENS_DEVICE void forward(const ForwardArguments& given, kittens::shared_byte* lds) {
    using Row = Worker<shape>;
    const Row worker;
    const int cols = given.rows.cols;
    const float scale = 1.0f / static_cast<float>(cols);
    for (uint32_t row = worker.first_row; row < given.rows.count; row += given.workers) {
        // From memory for each row and each half of its work: all of them together do not fit into scalar registers.
        const ForwardArguments arguments = kittens::arguments_again<ForwardArguments>();
        eight values[Row::chunks];
        // Keeps the loads of a long row from all being in flight at once, each with registers of its own.
        auto in_order = [] {
            if constexpr (Row::chunks > 4) kittens::schedule_fence();
        };
        auto read = [&](const RowTensor& tensor, const auto& take) {
            const buffer source = row_of<T>(tensor, arguments.rows, row);
            if constexpr (Row::chunks > 4) {
#pragma unroll
                for (int c = 0; c < Row::chunks; ++c) {
                    take(c, load_eight<T>(source, worker.column() + c * Row::chunk_step, arguments.wide));
                    in_order();
                }
            } else if (arguments.wide) {
#pragma unroll
                for (int c = 0; c < Row::chunks; ++c)
                    take(c, load_eight<T>(source, worker.column() + c * Row::chunk_step, true));
            } else {
#pragma unroll
                for (int c = 0; c < Row::chunks; ++c)
                    take(c, load_eight<T>(source, worker.column() + c * Row::chunk_step, false));
            }
        };
        read(arguments.x, [&](int c, eight loaded) { values[c] = loaded; });
        if (arguments.dropout.seed) {
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c) {
                values[c] *= kept(arguments.dropout, row, worker.column() + c * Row::chunk_step);
                in_order();
            }
        }
        if (arguments.residual.data)
            read(arguments.residual, [&](int c, eight loaded) { values[c] += loaded; });
        if (arguments.sum) {
            // What is normalised is the sum as it is returned: backward reads that one.
            const buffer destination = dense_row<T>(arguments.sum, row, cols);
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c) {
                values[c] =
                    __builtin_convertvector(__builtin_convertvector(values[c], kittens::vec<T, 8>), eight);
                store_eight<T>(values[c], destination, worker.column() + c * Row::chunk_step, arguments.wide);
            }
        }

        // Two passes over registers. The second one sees how far the first mean is off, and takes that out of both
        // results (Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983, formula 1.7).
        float mean = 0, correction = 0;
        if (arguments.mean) {
            eight sum = {};
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c) sum += values[c];
            mean = sum_of_row<Row::waves>(sum_of(sum), lds) * scale;
        }
        eight sum = {}, squares = {};
#pragma unroll
        for (int c = 0; c < Row::chunks; ++c) {
            in_order();
            const int column = worker.column() + c * Row::chunk_step;
#pragma unroll
            for (int i = 0; i < 8; ++i) values[c][i] = column + i < cols ? values[c][i] - mean : 0.0f;
            sum += values[c];
            squares = fused(values[c], values[c], squares);
        }
        float variance = sum_of_row<Row::waves>(sum_of(squares), lds) * scale;
        if (arguments.mean) {
            correction = sum_of_row<Row::waves>(sum_of(sum), lds) * scale;
            variance -= correction * correction;
        }
        const float rstd = kittens::hardware_reciprocal_square_root(variance + arguments.epsilon);
        if (worker.column() == 0) {
            arguments.rstd[row] = rstd;
            if (arguments.mean) arguments.mean[row] = mean + correction;
        }

        const ForwardArguments last = kittens::arguments_again<ForwardArguments>();
        const buffer destination = dense_row<T>(last.y, row, cols);
        auto finish = [&](int c, auto zero) {
            using Parameter = decltype(zero);
            const int column = worker.column() + c * Row::chunk_step;
            eight result = (values[c] - correction) * rstd;
            if (last.weight)
                result *= load_eight<Parameter>(parameters<Parameter>(last.weight, cols), column,
                                                last.wide_parameters);
            if (last.bias)
                result += load_eight<Parameter>(parameters<Parameter>(last.bias, cols), column,
                                                last.wide_parameters);
            store_eight<T>(result, destination, column, last.wide);
        };
        if constexpr (Row::chunks > 4) {
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c) {
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

}  // namespace hipkittens::norm
