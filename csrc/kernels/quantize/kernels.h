// kernels/quantize/kernels.h: the device code of each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/row_reduction.h"
#include "../element_of.h"
#include "../row_columns.h"
#include "codes.h"

namespace hipkittens::quantize {

using kittens::buffer;

// A scale for each row. What a workgroup's registers hold is read once, the rest a second time.
template <RowConfig config>
struct RowKernel {
    using T = typename element_of<config.element>::value;
    using Reduction = kittens::RowReduction<config.waves>;
    static constexpr int threads = config.waves * 64, waves_per_simd = 4, lds_bytes = Reduction::lds_bytes;
    static constexpr uint32_t step = threads * 8, held_columns = step * config.chunks;

    KITTENS_DEVICE static void run(const QuantizeArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t row = kittens::workgroup_id_x(), column = kittens::thread_id() * 8;
        const bool wide = arguments.aligned && arguments.columns % 8 == 0;
        const buffer x = {static_cast<const char*>(arguments.x.data) +
                              arguments.x.offset(row, arguments.rows) * int64_t(sizeof(T)),
                          arguments.columns * static_cast<uint32_t>(sizeof(T))};
        const auto load = [&](uint32_t at) { return kittens::load_eight<T>(x, at, wide); };
        kittens::raw_eight<T> held[config.chunks];
        if (wide) {
            kittens::load_raw_row<T>(held, x, column * sizeof(T), step * sizeof(T));
        } else {
#pragma unroll
            for (int c = 0; c < config.chunks; ++c)
                held[c] = __builtin_convertvector(load(column + c * step), kittens::raw_eight<T>);
        }
        float magnitude = 0;
#pragma unroll
        for (int c = 0; c < config.chunks; ++c)
            magnitude = kittens::larger_or_nan(magnitude, largest_magnitude(kittens::widened(held[c])));
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
        for (int c = 0; c < config.chunks; ++c) store(kittens::widened(held[c]), column + c * step);
        for (uint32_t first = held_columns; first < arguments.columns; first += step)
            store(load(first + column), first + column);
    }
};

template <class T>
KITTENS_DEVICE RowColumns<T> columns_of(const QuantizeArguments& arguments, uint32_t workgroup) {
    return {workgroup * threads + kittens::thread_id(), arguments.threads_per_row, arguments.rows.all,
            arguments.columns, arguments.aligned != 0};
}
template <class T>
KITTENS_DEVICE eight load(const QuantizeArguments& arguments, const RowColumns<T>& columns) {
    if (columns.none()) return 0.0f;
    return columns.load(arguments.x.data, arguments.x.offset(columns.row, arguments.rows));
}
template <class T>
KITTENS_DEVICE void store(const QuantizeArguments& arguments, const RowColumns<T>& columns, eight values,
                          const Scale& scale) {
    if (columns.none()) return;
    store_codes(arguments, codes_of(arguments, values, scale), columns.row, columns.first,
                arguments.columns - columns.first, columns.whole() && arguments.columns % 8 == 0);
}

// A scale for each group of columns, whose threads are neighbours.
template <ElementConfig config>
struct GroupKernel {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = quantize::threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const QuantizeArguments& arguments) {
        const auto columns = columns_of<T>(arguments, kittens::workgroup_id_x());
        const eight values = load(arguments, columns);
        const Scale scale = scale_of(
            arguments,
            kittens::combine_group(largest_magnitude(values), arguments.group_lanes, kittens::larger_or_nan));
        store(arguments, columns, values, scale);
        if (kittens::thread_id() % arguments.group_lanes != 0 || columns.row >= arguments.padded_rows) return;
        const uint32_t group = columns.first / (arguments.group_lanes * 8);
        // Padding, which matrix instructions read, is 1.
        constexpr Scale one = {1, 1, 127};
        const bool there = columns.row < arguments.rows.all && group < arguments.groups;
        store_scale(arguments, there ? scale : one, columns.row, group);
    }
};

template <ElementConfig config>
struct MaximumKernel {
    using T = typename element_of<config.element>::value;
    using Reduction = kittens::RowReduction<threads / 64>;
    static constexpr int threads = quantize::threads, waves_per_simd = 4, lds_bytes = Reduction::lds_bytes;

    KITTENS_DEVICE static void run(const QuantizeArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t all = (arguments.rows.all * arguments.threads_per_row + threads - 1) / threads;
        float magnitude = 0;
        for (uint32_t group = kittens::workgroup_id_x(); group < all; group += arguments.maxima_count)
            magnitude = kittens::larger_or_nan(
                magnitude, largest_magnitude(load(arguments, columns_of<T>(arguments, group))));
        magnitude = Reduction(lds).magnitude(magnitude);
        if (kittens::thread_id() == 0) arguments.maxima[kittens::workgroup_id_x()] = magnitude;
    }
};

// One scale, which is given or follows from the maxima.
template <ElementConfig config>
struct TensorKernel {
    using T = typename element_of<config.element>::value;
    using Reduction = kittens::RowReduction<threads / 64>;
    static constexpr int threads = quantize::threads, waves_per_simd = 4, lds_bytes = Reduction::lds_bytes;

    KITTENS_DEVICE static void run(const QuantizeArguments& arguments, kittens::shared_byte* lds) {
        const auto columns = columns_of<T>(arguments, kittens::workgroup_id_x());
        const eight values = load(arguments, columns);
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
