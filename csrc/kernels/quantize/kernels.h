// kernels/quantize/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/row_reduction.h"
#include "../element_of.h"
#include "../quantization/codes.h"
#include "../row_columns.h"
#include "kinds.h"
#include "row_bands.h"
#include "row_values.h"

namespace hipkittens::quantize {

using kittens::buffer;

// One scale per row. The part that fits in a workgroup's registers is read once, the rest a second time.
template <RowConfig config>
struct RowKernel {
    using T = typename element_of<config.element>::value;
    using Raw = kittens::raw_eight<T>;
    using Reduction = kittens::RowReduction<config.waves>;
    static constexpr int threads = config.waves * 64, waves_per_simd = 4, lds_bytes = Reduction::lds_bytes;
    static constexpr uint32_t step = threads * 8, held_columns = step * config.chunks;

    KITTENS_DEVICE static void run(const QuantizeArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t row = kittens::workgroup_id_x(), column = kittens::thread_id() * 8;
        const bool wide = arguments.aligned && arguments.columns % 8 == 0;
        const uint32_t from = config.gated ? row : row_of_x(arguments, row);
        const auto row_of = [&](const StridedRows& of) -> buffer {
            const bool none = !config.gated && from == no_row;
            return {static_cast<const char*>(of.data) +
                        of.offset(none ? 0 : from, arguments.rows) * int64_t(sizeof(T)),
                    none ? 0 : arguments.columns * static_cast<uint32_t>(sizeof(T))};
        };
        const auto bias_at = [&](uint32_t at) {
            return [&arguments, at, wide](uint32_t first) {
                const buffer bias = {static_cast<const char*>(arguments.bias) + first * sizeof(T),
                                     arguments.columns * static_cast<uint32_t>(sizeof(T))};
                return kittens::load_eight<T>(bias, at, wide);
            };
        };
        const float* factors = nullptr;
        if constexpr (!config.gated)
            if (arguments.smooth) factors = factors_of(arguments, row);
        const auto smoothed = [&](eight values, uint32_t at) -> eight {
            if constexpr (config.gated) return values;
            if (!arguments.smooth) return values;
            if (!factors) return 0.0f;
            const buffer from = {reinterpret_cast<const char*>(factors), arguments.columns * 4};
            return values * kittens::load_eight<float>(from, at, arguments.columns % 8 == 0);
        };
        const auto load = [&](uint32_t at) {
            const eight values = kittens::load_eight<T>(row_of(arguments.x), at, wide);
            if constexpr (config.gated)
                return kittens::widened(gated<T>(arguments, values,
                                                 kittens::load_eight<T>(row_of(arguments.other), at, wide),
                                                 bias_at(at)));
            return smoothed(values, at);
        };
        const auto load_held = [&](const StridedRows& of, Raw(&into)[config.chunks]) {
            const buffer from = row_of(of);
            if (wide) return kittens::load_raw_row<T>(into, from, column * sizeof(T), step * sizeof(T));
#pragma unroll
            for (int c = 0; c < config.chunks; ++c)
                into[c] =
                    __builtin_convertvector(kittens::load_eight<T>(from, column + c * step, false), Raw);
        };
        Raw held[config.chunks];
        load_held(arguments.x, held);
        if constexpr (config.gated) {
            Raw others[config.chunks];
            load_held(arguments.other, others);
#pragma unroll
            for (int c = 0; c < config.chunks; ++c)
                held[c] = gated<T>(arguments, kittens::widened(held[c]), kittens::widened(others[c]),
                                   bias_at(column + c * step));
        }
        float magnitude = 0;
#pragma unroll
        for (int c = 0; c < config.chunks; ++c)
            magnitude = kittens::larger_or_nan(
                magnitude, !config.gated && arguments.smooth
                               ? largest_magnitude(smoothed(kittens::widened(held[c]), column + c * step))
                               : largest_raw_magnitude<T>(held[c]));
        for (uint32_t first = held_columns; first < arguments.columns; first += step)
            magnitude = kittens::larger_or_nan(magnitude, largest_magnitude(load(first + column)));
        const Scale scale = scale_of(arguments, Reduction(lds).magnitude(magnitude));
        if (kittens::thread_id() == 0) store_scale(arguments, scale, row, 0);
        const auto store = [&](eight values, uint32_t at) {
            if (at >= arguments.columns) return;
            store_codes(arguments, codes_of(arguments, values, scale), row, at, arguments.columns - at,
                        arguments.columns % 8 == 0);
        };
#pragma unroll
        for (int c = 0; c < config.chunks; ++c)
            if (c * step < arguments.columns)  // uniform for whole waves: short rows do not pay for long ones
                store(smoothed(kittens::widened(held[c]), column + c * step), column + c * step);
        for (uint32_t first = held_columns; first < arguments.columns; first += step)
            store(load(first + column), first + column);
    }
};

template <class T>
KITTENS_DEVICE RowColumns<T> columns_of(const QuantizeArguments& arguments, uint32_t workgroup) {
    return {workgroup * threads + kittens::thread_id(), arguments.threads_per_row, arguments.rows.all,
            arguments.columns, arguments.aligned != 0};
}
template <bool is_gated, class T>
KITTENS_DEVICE kittens::raw_eight<T> load(const QuantizeArguments& arguments, const RowColumns<T>& columns) {
    if (columns.none()) return T();
    const uint32_t row = is_gated ? columns.row : row_of_x(arguments, columns.row);
    if (row == no_row) return T();
    const auto part = [&](const StridedRows& of) {
        return columns.load_raw(of.data, of.offset(row, arguments.rows));
    };
    const auto values = part(arguments.x);
    if constexpr (is_gated) {
        const auto other = part(arguments.other);
        return gated<T>(arguments, kittens::widened(values), kittens::widened(other),
                        [&](uint32_t first) { return columns.load(arguments.bias, first); });
    }
    return values;
}
template <class T>
KITTENS_DEVICE void store(const QuantizeArguments& arguments, const RowColumns<T>& columns, eight values,
                          const Scale& scale) {
    if (columns.none()) return;
    store_codes(arguments, codes_of(arguments, values, scale), columns.row, columns.first,
                arguments.columns - columns.first, columns.whole() && arguments.columns % 8 == 0);
}

// One scale per group of columns, whose threads are adjacent. `place` returns the row in which the scales of a row are stored, and
// is called by all lanes of a wave together.
template <GateConfig config, class Place>
KITTENS_DEVICE void quantize_groups(const QuantizeArguments& arguments, const Place& place) {
    using T = typename element_of<config.element>::value;
    const auto columns = columns_of<T>(arguments, kittens::workgroup_id_x());
    const auto raw = load<config.gated>(arguments, columns);
    float magnitude = largest_raw_magnitude<T>(raw);
    eight values = kittens::widened(raw);
    const uint32_t row = place(columns.row);
    if constexpr (!config.gated)
        if (arguments.smooth && !columns.none()) {
            const float* factors = factors_of(arguments, columns.row);
            // Floats are 4-byte aligned.
            const auto of = RowColumns<float>::at(columns.row, columns.first, arguments.rows.all,
                                                  arguments.columns, true);
            values = factors ? values * of.load(factors, 0) : eight(0.0f);
            magnitude = largest_magnitude(values);
        }
    const Scale scale =
        scale_of(arguments, kittens::combine_group(magnitude, arguments.group_lanes, kittens::larger_or_nan));
    store(arguments, columns, values, scale);
    if (!begins_group(arguments, columns.first) || columns.row >= arguments.padded_rows) return;
    const uint32_t group = group_of(arguments, columns.first);
    constexpr Scale one = {1, 1, 127};  // for padding, which matrix instructions read
    const bool there = columns.row < arguments.rows.all && group < arguments.groups;
    store_scale(arguments, there ? scale : one, row, group);
}

struct GroupWorkgroup {
    static constexpr int threads = quantize::threads, waves_per_simd = 4, lds_bytes = 0;
};
template <GateConfig config>
struct GroupKernel : GroupWorkgroup {
    KITTENS_DEVICE static void run(const QuantizeArguments& arguments) {
        quantize_groups<config>(arguments, [](uint32_t row) { return row; });
    }
};
template <GateConfig config>
struct BandedGroupKernel : GroupWorkgroup {
    KITTENS_DEVICE static void run(const BandedQuantizeArguments& arguments) {
        quantize_groups<config>(arguments,
                                [&](uint32_t row) { return BandsOfRanges{arguments.ranges}.place(row); });
    }
};

// One byte per thread.
template <NoConfig config>
struct BandsKernel : GroupWorkgroup {
    KITTENS_DEVICE static void run(const BandsArguments& arguments) {
        using global = __attribute__((address_space(1))) uint8_t*;
        const Divisor& padded = arguments.padded_columns;
        const uint32_t thread = kittens::workgroup_id_x() * threads + kittens::thread_id(),
                       row = padded.quotient(thread), column = thread - row * padded.value;
        uint8_t scale = 127;  // 1, for columns that are only padding
        if (row < arguments.rows && column < arguments.columns)
            scale = ((global)arguments.scales)[row * arguments.row_step + column * arguments.column_step];
        const uint32_t place = BandsOfRanges{arguments.ranges}.place(row);
        if (row < arguments.rows)
            ((global)arguments.result)[shuffled_scale(place, column, padded.value)] = scale;
    }
};

// One scale per block of a matrix: 16 threads share a row of it, and each has block_rows / 16 rows.
template <ElementConfig config>
struct BlockKernel {
    using T = typename element_of<config.element>::value;
    using Raw = kittens::raw_eight<T>;
    using Reduction = kittens::RowReduction<threads / 64>;
    static constexpr int threads = quantize::threads, waves_per_simd = 4, lds_bytes = Reduction::lds_bytes;
    static constexpr uint32_t row_threads = block_columns / columns_of_thread,
                              rows_together = threads / row_threads, turns = block_rows / rows_together;

    KITTENS_DEVICE static void run(const QuantizeArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t blocks = (arguments.matrix_rows + block_rows - 1) / block_rows;
        const uint32_t row_of_blocks = kittens::workgroup_id_x() / arguments.groups,
                       column_of_blocks = kittens::workgroup_id_x() - row_of_blocks * arguments.groups,
                       matrix = row_of_blocks / blocks;
        const uint32_t first = (row_of_blocks - matrix * blocks) * block_rows,
                       end = arguments.matrix_rows * (matrix + 1);
        const auto place = [&](uint32_t turn) {
            return RowColumns<T>::at(
                matrix * arguments.matrix_rows + first + turn * rows_together +
                    kittens::thread_id() / row_threads,
                column_of_blocks * block_columns + kittens::thread_id() % row_threads * columns_of_thread,
                end, arguments.columns, arguments.aligned != 0);
        };
        Raw held[turns];
        float magnitude = 0;
#pragma unroll
        for (uint32_t turn = 0; turn < turns; ++turn) held[turn] = load<false>(arguments, place(turn));
#pragma unroll
        for (uint32_t turn = 0; turn < turns; ++turn)
            magnitude = kittens::larger_or_nan(magnitude, largest_raw_magnitude<T>(held[turn]));
        const Scale scale = scale_of(arguments, Reduction(lds).magnitude(magnitude));
        if (kittens::thread_id() == 0) store_scale(arguments, scale, row_of_blocks, column_of_blocks);
#pragma unroll
        for (uint32_t turn = 0; turn < turns; ++turn)
            store(arguments, place(turn), kittens::widened(held[turn]), scale);
    }
};

template <ElementConfig config>
struct MaximumKernel {
    using T = typename element_of<config.element>::value;
    using Reduction = kittens::RowReduction<threads / 64>;
    static constexpr int threads = quantize::threads, waves_per_simd = 4, lds_bytes = Reduction::lds_bytes;

    KITTENS_DEVICE static void run(const QuantizeArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t all = (arguments.rows.all * arguments.threads_per_row.value + threads - 1) / threads;
        float magnitude = 0;
        for (uint32_t group = kittens::workgroup_id_x(); group < all; group += arguments.maxima_count)
            magnitude = kittens::larger_or_nan(
                magnitude, largest_raw_magnitude<T>(load<false>(arguments, columns_of<T>(arguments, group))));
        magnitude = Reduction(lds).magnitude(magnitude);
        if (kittens::thread_id() == 0) arguments.maxima[kittens::workgroup_id_x()] = magnitude;
    }
};

// A single scale, which is given or computed from the maxima.
template <GateConfig config>
struct TensorKernel {
    using T = typename element_of<config.element>::value;
    using Reduction = kittens::RowReduction<threads / 64>;
    static constexpr int threads = quantize::threads, waves_per_simd = 4, lds_bytes = Reduction::lds_bytes;

    KITTENS_DEVICE static void run(const QuantizeArguments& arguments, kittens::shared_byte* lds) {
        const auto columns = columns_of<T>(arguments, kittens::workgroup_id_x());
        const eight values = kittens::widened(load<config.gated>(arguments, columns));
        Scale scale;
        if (arguments.given) {
            scale = {0, 1 / *arguments.given, 0};
        } else {
            float magnitude = 0;
            for (uint32_t i = kittens::thread_id(); i < arguments.maxima_count; i += threads)
                magnitude = kittens::larger_or_nan(magnitude, arguments.maxima[i]);
            scale = scale_of(arguments, Reduction(lds).magnitude(magnitude));
            if (kittens::workgroup_id_x() == 0 && kittens::thread_id() == 0)
                store_scale(arguments, scale, 0, 0);
        }
        store(arguments, columns, values, scale);
    }
};

}  // namespace hipkittens::quantize

#include "gated_rows.h"
#include "token_kernels.h"
