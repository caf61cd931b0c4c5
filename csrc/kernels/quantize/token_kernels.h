// kernels/quantize/token_kernels.h: the kinds that read a token once for the rows of all its choices.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/row_reduction.h"
#include "../element_of.h"
#include "../quantization/codes.h"
#include "row_bands.h"
#include "token_rows.h"
#include "usual_codes.h"

namespace hipkittens::quantize {

// Stores the eight codes of each of a thread's chunks of columns, `step` columns apart, to one row.
template <int chunks>
KITTENS_DEVICE void store_token_codes(const TokenQuantizeArguments& arguments,
                                      const kittens::vec<uint32_t, 2> (&words)[chunks], uint32_t row,
                                      uint32_t column, uint32_t step) {
#pragma unroll
    for (int c = 0; c < chunks; ++c)
        if (column + c * step < arguments.columns)
            store_codes(arguments, words[c], row, column + c * step, kittens::chunk_elements, true);
}
template <class T>
KITTENS_DEVICE kittens::buffer token_of(const TokenQuantizeArguments& arguments, uint32_t token) {
    return {static_cast<const char*>(arguments.x.data) + token * arguments.x.inner * int64_t(sizeof(T)),
            arguments.columns * static_cast<uint32_t>(sizeof(T))};
}

// One scale per row.
template <HeldRowConfig config>
struct TokenRowKernel {
    using T = typename element_of<config.element>::value;
    using Reduction = kittens::RowReduction<config.waves>;
    static constexpr int threads = config.waves * 64, waves_per_simd = 4, lds_bytes = Reduction::lds_bytes;
    static constexpr uint32_t step = threads * columns_of_thread;

    KITTENS_DEVICE static void run(const TokenQuantizeArguments& arguments, kittens::shared_byte* lds) {
        assume_usual_codes(arguments);
        const uint32_t token = kittens::workgroup_id_x(), column = kittens::thread_id() * columns_of_thread;
        kittens::raw_eight<T> held[config.chunks];
        kittens::load_raw_row<T>(held, token_of<T>(arguments, token), column * sizeof(T), step * sizeof(T));
        const TokenRows rows(arguments, token);
        float magnitude = 0;
#pragma unroll
        for (int c = 0; c < config.chunks; ++c)
            magnitude = kittens::larger_or_nan(magnitude, largest_raw_magnitude<T>(held[c]));
        const Scale scale = scale_of(arguments, Reduction(lds).magnitude(magnitude));
        if (kittens::wave_id() == 0 && rows.has_place()) store_scale(arguments, scale, rows.place(), 0);
        kittens::vec<uint32_t, 2> words[config.chunks];
#pragma unroll
        for (int c = 0; c < config.chunks; ++c)
            words[c] = codes_of(arguments, kittens::widened(held[c]), scale);
        if (arguments.codes_of_tokens)
            store_token_codes(arguments, words, token, column, step);
        else
            visit_lanes(kittens::lanes_where(rows.has_place()), rows.place(),
                        [&](uint32_t row) { store_token_codes(arguments, words, row, column, step); });
        const uint64_t empty = kittens::lanes_where(rows.is_empty());
        if (!empty) return;
        if (kittens::wave_id() == 0 && rows.is_empty())
            store_scale(arguments, scale_of(arguments, 0), rows.pair, 0);
        if (arguments.codes_of_tokens) return;
        const kittens::vec<uint32_t, 2> zeros[config.chunks] = {};
        visit_lanes(empty, rows.pair,
                    [&](uint32_t row) { store_token_codes(arguments, zeros, row, column, step); });
    }
};

// One scale per group of columns. A workgroup processes 8 columns of a token per thread.
template <ElementConfig config>
struct TokenGroupKernel {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = quantize::threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const TokenQuantizeArguments& arguments) {
        assume_usual_codes(arguments);
        const uint32_t token = arguments.parts.quotient(kittens::workgroup_id_x()),
                       part = kittens::workgroup_id_x() - token * arguments.parts.value;
        const uint32_t column = (part * threads + kittens::thread_id()) * columns_of_thread;
        const kittens::raw_eight<T> held =
            kittens::load_raw<T>(token_of<T>(arguments, token), column);  // 0 past the end of the row
        const TokenRows rows(arguments, token);
        // Before waiting for x: the loads of range ends are then in flight at the same time.
        const uint32_t scales = row_of_scales(arguments, rows.place(), rows.has_place());
        const float magnitude = kittens::combine_group(largest_raw_magnitude<T>(held), arguments.group_lanes,
                                                       kittens::larger_or_nan);
        const Scale scale = scale_of(arguments, magnitude);
        if (arguments.codes_of_tokens) {
            const kittens::vec<uint32_t, 2> words[] = {codes_of(arguments, kittens::widened(held), scale)};
            store_token_codes(arguments, words, token, column, 0);
        }
        store_rows(arguments, column, rows.place(), scales, rows.has_place(), scale, kittens::widened(held));
        if (kittens::any_lane(rows.is_empty()))
            store_rows(arguments, column, rows.pair, row_of_scales(arguments, rows.pair, rows.is_empty()),
                       rows.is_empty(), scale_of(arguments, 0), 0.0f);
    }

  private:
    KITTENS_DEVICE static uint32_t row_of_scales(const TokenQuantizeArguments& arguments, uint32_t row,
                                                 bool there) {
        if (!arguments.ranges.ends) return row;
        return BandsOfRanges{arguments.ranges}.places(row, kittens::lanes_where(there));
    }
    // The same for the rows of all lanes that have one.
    KITTENS_DEVICE static void store_rows(const TokenQuantizeArguments& arguments, uint32_t column,
                                          uint32_t row, uint32_t row_of_scales, bool there,
                                          const Scale& scale, eight values) {
        const kittens::vec<uint32_t, 2> words[] = {codes_of(arguments, values, scale)};
        const uint32_t group = group_of(arguments, column);
        constexpr Scale one = {1, 1, 127};  // for padding, which matrix instructions read
        const bool stores_scale = begins_group(arguments, column) && group < arguments.padded_groups;
#pragma clang loop unroll(disable)
        for (uint64_t left = kittens::lanes_where(there); left; left &= left - 1) {
            const int lane = __builtin_ctzll(left);
            if (!arguments.codes_of_tokens)
                store_token_codes(arguments, words, kittens::value_of_lane(row, lane), column, 0);
            if (stores_scale)
                store_scale(arguments, group < arguments.groups ? scale : one,
                            kittens::value_of_lane(row_of_scales, lane), group);
        }
    }
};

}  // namespace hipkittens::quantize
