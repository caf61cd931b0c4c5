// kernels/norm/plain.h: the forward kernel of most calls, which has nothing in it but what they need.
// SPDX-License-Identifier: MIT
#pragma once
#include "forward.h"

namespace hipkittens::norm {

// Rows of whole chunks one step apart, a weight of their type, no dropout. What belongs to a row is under way before the
// first of it arrives; of floats, which take twice the registers, the parameters follow when the row is there.
template <class T, RowShape shape, bool centred>
KITTENS_DEVICE void forward_plain(const PlainArguments& arguments, kittens::shared_byte* lds) {
    using Row = Worker<shape>;
    using Raw = kittens::raw_eight<T>;
    constexpr bool early = kittens::is_16bit<T>;
    const Row worker;
    const int column = worker.wave_column + kittens::lane_id() * 8;
    RowSums<Row::waves> sum_of_row(lds);
    const auto row_at = [&](const void* data, uint32_t stride, uint32_t row) {
        return buffer{static_cast<const char*>(data) + static_cast<uint64_t>(row) * stride,
                      arguments.row_bytes};
    };
    const auto read = [&](buffer row, Raw(&into)[Row::chunks]) {
#pragma unroll
        for (int c = 0; c < Row::chunks; ++c)
            into[c] = kittens::load_raw<T>(row, column + c * Row::chunk_step);
    };
    const auto write = [&](const eight(&values)[Row::chunks], void* data, uint32_t row) {
#pragma unroll
        for (int c = 0; c < Row::chunks; ++c)
            store_eight<T>(values[c], row_at(data, arguments.row_bytes, row), column + c * Row::chunk_step,
                           true);
    };
    for (uint32_t row = worker.first_row, step; row < arguments.rows; row += step) {
        Raw x[Row::chunks], weight[Row::chunks], bias[Row::chunks];
        const auto read_parameters = [&] {
            read({static_cast<const char*>(arguments.weight), arguments.row_bytes}, weight);
            // Without a bias none of it is in range, and zeros come.
            if constexpr (centred)
                read({static_cast<const char*>(arguments.bias), arguments.bias_bytes}, bias);
        };
        read(row_at(arguments.x, arguments.x_stride, row), x);
        kittens::schedule_fence();
        // What is not in registers from the start, see device.cpp.
        const PlainArguments rest = kittens::arguments_again<PlainArguments>();
        step = rest.workers;
        eight values[Row::chunks];
        // What is loaded under a condition is used under it: else its registers would be taken all the time.
        if (arguments.residual) {
            Raw residual[Row::chunks];
            read(row_at(arguments.residual, rest.residual_stride, row), residual);
            if constexpr (early) read_parameters();
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c)
                values[c] = kittens::widened(__builtin_convertvector(
                    kittens::widened(x[c]) + kittens::widened(residual[c]), kittens::vec<T, 8>));
            write(values, rest.sum, row);
        } else {
            if constexpr (early) read_parameters();
#pragma unroll
            for (int c = 0; c < Row::chunks; ++c) values[c] = kittens::widened(x[c]);
        }
        if constexpr (!early) {
            kittens::schedule_fence();
            read_parameters();
        }
        const auto subtract = [&](int c, float mean) {
            const uint32_t place = (column + c * Row::chunk_step) * sizeof(T);
            values[c] -= place < arguments.row_bytes ? mean : 0.0f;
        };
        const auto [mean, correction, rstd] =
            moments<centred>(values, centred, rest.per_column, rest.epsilon, sum_of_row, subtract);
        if (column == 0) {
            rest.rstd[row] = rstd;
            if constexpr (centred) rest.mean[row] = mean;
        }
#pragma unroll
        for (int c = 0; c < Row::chunks; ++c) {
            values[c] = (values[c] - correction) * rstd * kittens::widened(weight[c]);
            if constexpr (centred) values[c] += kittens::widened(bias[c]);
        }
        write(values, rest.y, row);
    }
}

}  // namespace hipkittens::norm
