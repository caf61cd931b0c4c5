// kernels/norm/plain.h: the forward kernel for the common case, without dropout, strides or mixed types.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/convert.h"
#include "forward.h"

namespace hipkittens::norm {

// The row of a workgroup or wave, or several short ones of a wave, with 16 lanes each.
template <class T, RowShape shape>
class PlainRows {
    static constexpr bool several = shape.rows_per_wave() > 1;
    static constexpr uint32_t out_of_range =
        0x80000000u;  // and so is any offset past it, as in a row that ends there
    uint32_t first_, lane_row_ = 0, row_bytes_;
    bool there_ = true;

  public:
    static constexpr uint32_t chunk_step = shape.waves * 512 * sizeof(T);
    uint32_t column;  // of the lane's first chunk, in bytes

    KITTENS_DEVICE PlainRows(uint32_t rows, uint32_t row_bytes) : row_bytes_(row_bytes) {
        const uint32_t lane = kittens::thread_id() % kittens::wave_lanes;
        const uint32_t wave = shape.workgroup_waves == 1 ? 0 : kittens::wave_id();
        first_ = kittens::workgroup_id_x() * shape.rows_per_workgroup();
        if constexpr (shape.waves == 1) first_ += wave * shape.rows_per_wave();
        column = (lane % shape.lanes * 8 + (shape.waves == 1 ? 0 : wave * 512)) * sizeof(T);
        if constexpr (several) {
            lane_row_ = lane / shape.lanes;
            there_ = first_ + lane_row_ < rows && column < row_bytes;
        }
    }
    KITTENS_DEVICE uint32_t first() const { return first_; }  // the same in all lanes
    KITTENS_DEVICE uint32_t row() const { return first_ + lane_row_; }
    KITTENS_DEVICE bool begins_row() const { return column == 0 && there_; }
    KITTENS_DEVICE buffer of(const void* data, uint32_t stride) const {
        return {static_cast<const char*>(data) + static_cast<uint64_t>(first_) * stride,
                several ? out_of_range : row_bytes_};
    }
    KITTENS_DEVICE uint32_t offset(uint32_t stride) const {
        if constexpr (!several) return column;
        return there_ ? lane_row_ * stride + column : out_of_range;
    }
};

// Rows of whole 16-byte vectors one stride apart, a weight of their type, no dropout. All loads of a row are issued before the
// first of them completes, the weight's before the row's: the load queue of a compute unit is FIFO across its waves, and a weight
// issued later would delay the row's reduction behind loads of other waves. Short rows are too few bytes for that to matter, and
// are loaded first. For floats, which take twice the registers, the parameters are loaded once the row is complete.
// Not wide: rows of any length and alignment, element by element, each of which has its own register while it is loaded; the order of
// additions is the same.
template <class T, RowShape shape, bool centred, bool wide>
KITTENS_DEVICE void forward_plain(const PlainArguments& arguments, kittens::shared_byte* lds) {
    using Rows = PlainRows<T, shape>;
    using Raw = kittens::raw_eight<T>;
    constexpr bool early = kittens::is_16bit<T> && (wide || shape.chunks <= 2),
                   short_rows = shape.rows_per_wave() > 1;
    constexpr int chunks = shape.chunks;
    const Rows rows(arguments.rows, arguments.row_bytes);
    if (shape.workgroup_waves > shape.waves && rows.first() >= arguments.rows) return;
    RowReduction<shape.waves, shape.lanes> row_reduction(lds);
    const auto load_row = [](Raw(&into)[chunks], buffer source, uint32_t offset) {
        if constexpr (wide) {
            kittens::load_raw_row<T>(into, source, offset, Rows::chunk_step);
        } else {
#pragma unroll
            for (int c = 0; c < chunks; ++c)
#pragma unroll
                for (uint32_t i = 0; i < 8; ++i)
                    into[c][i] = kittens::buffer_load<T>(
                        source, offset + c * Rows::chunk_step + i * static_cast<uint32_t>(sizeof(T)));
        }
    };
    const auto read = [&](const void* data, uint32_t stride, Raw(&into)[chunks]) {
        load_row(into, rows.of(data, stride), rows.offset(stride));
    };
    const auto write = [&](const eight(&values)[chunks], buffer destination) {
#pragma unroll
        for (int c = 0; c < chunks; ++c) {
            const uint32_t offset = rows.offset(arguments.row_bytes) + c * Rows::chunk_step;
            const Raw narrow = kittens::narrowed<T, 8>(values[c]);
            if constexpr (wide) {
                kittens::store_raw_at<T>(narrow, destination, offset);
            } else {
#pragma unroll
                for (uint32_t i = 0; i < 8; ++i) {
                    const T value = narrow[i];
                    kittens::buffer_store(value, destination, offset + i * static_cast<uint32_t>(sizeof(T)));
                }
            }
        }
    };
    Raw x[chunks], weight[chunks], bias[chunks];
    const auto read_parameters = [&] {
        const auto load = [&](const void* data, uint32_t bytes, Raw(&into)[chunks]) {
            load_row(into, {static_cast<const char*>(data), bytes}, rows.column);
        };
        load(arguments.weight, arguments.row_bytes, weight);
        // Without a bias, nothing is in range and zeros are read.
        if constexpr (centred) load(arguments.bias, arguments.bias ? arguments.row_bytes : 0, bias);
    };
    if constexpr (early && !short_rows) read_parameters();
    read(arguments.x, arguments.x_stride, x);
    kittens::schedule_fence();
    if constexpr (early && short_rows) read_parameters();
    // Computed here instead of after the wait for the row.
    buffer y = rows.of(arguments.y, arguments.row_bytes);
    y.base = reinterpret_cast<const char*>(kittens::opaque_scalar(reinterpret_cast<int64_t>(y.base)));
    kittens::schedule_fence();
    eight values[chunks];
#pragma unroll
    for (int c = 0; c < chunks; ++c) values[c] = kittens::widened(x[c]);
    // What is loaded under a condition is used under it; otherwise its registers would be live all the time.
    if (__builtin_expect(arguments.has_residual, false)) {
        const PlainArguments rest = kittens::reload_arguments<PlainArguments>();
        Raw residual[chunks];
        read(rest.residual, rest.residual_stride, residual);
#pragma unroll
        for (int c = 0; c < chunks; ++c)
            values[c] = kittens::widened(
                __builtin_convertvector(values[c] + kittens::widened(residual[c]), kittens::vec<T, 8>));
        write(values, rows.of(rest.sum, arguments.row_bytes));
    }
    if constexpr (!early) {
        kittens::schedule_fence();
        read_parameters();
    }
    const auto subtract = [&](int c, float mean) {
        const uint32_t column = rows.column + c * Rows::chunk_step;
        if constexpr (wide) {
            values[c] -= column < arguments.row_bytes ? mean : 0.0f;
        } else {
#pragma unroll
            for (uint32_t i = 0; i < 8; ++i)
                values[c][i] -= column + i * sizeof(T) < arguments.row_bytes ? mean : 0.0f;
        }
    };
    const auto [mean, correction, rstd] =
        moments<centred>(values, centred, arguments.per_column, arguments.epsilon, row_reduction, subtract);
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
        values[c] = (values[c] - correction) * rstd * kittens::widened(weight[c]);
        if constexpr (centred) values[c] += kittens::widened(bias[c]);
    }
    write(values, y);
    kittens::schedule_fence();
    // Stored after the row itself, which later kernels may be waiting for.
    if (arguments.needs_statistics && rows.begins_row()) {
        const PlainArguments rest = kittens::reload_arguments<PlainArguments>();
        rest.rstd[rows.row()] = rstd;
        if constexpr (centred) rest.mean[rows.row()] = mean;
    }
}

}  // namespace hipkittens::norm
