// kernels/expert_rows/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/lane_intrinsics.h"
#include "../element_of.h"
#include "../row_columns.h"
#include "kinds.h"

namespace hipkittens::expert_rows {

using kittens::eight;
template <class T>
using global = __attribute__((address_space(1))) T*;

// rows: number of rows that have threads.
template <class T>
KITTENS_DEVICE RowColumns<T> columns_of(const ExpertRowsArguments& arguments, uint32_t rows) {
    return {kittens::workgroup_id_x() * threads + kittens::thread_id(), arguments.threads_per_row, rows,
            arguments.columns, arguments.aligned != 0};
}

// result[place] = weight of its pair * rows[token of its pair], and 0 for a place without a pair. A thread processes the same
// columns of several places, whose loads are in flight together once those of their pairs are done.
template <ElementConfig config>
struct Gather {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = expert_rows::threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const ExpertRowsArguments& arguments) {
        const RowColumns<T> columns = columns_of<T>(arguments, rows_of_threads(arguments.count));
        if (columns.none()) return;
        const uint32_t first = columns.row * gathered_places;
        uint32_t pairs[gathered_places];
#pragma unroll
        for (uint32_t i = 0; i < gathered_places; ++i)
            // Places past the last one use its pair, and are not stored.
            pairs[i] = static_cast<uint32_t>(
                ((global<const int32_t>)arguments.index)[place_of(first + i, arguments.count)]);
        kittens::raw_eight<T> raw[gathered_places];
        float weights[gathered_places];
#pragma unroll
        for (uint32_t i = 0; i < gathered_places; ++i) {
            // For a place without a pair, a valid row is read and ignored.
            const uint32_t pair = pairs[i] < arguments.limit ? pairs[i] : 0;
            raw[i] = columns.load_raw(arguments.rows, arguments.choices.quotient(pair) * arguments.row_step);
            weights[i] = arguments.weights ? ((global<const float>)arguments.weights)[pair] : 1.0f;
        }
#pragma unroll
        for (uint32_t i = 0; i < gathered_places; ++i) {
            if (first + i >= arguments.count) break;
            const eight values =
                pairs[i] < arguments.limit ? kittens::widened(raw[i]) * weights[i] : eight(0.0f);
            columns.store(values, arguments.result, static_cast<int64_t>(first + i) * arguments.columns);
        }
    }

    KITTENS_DEVICE static uint32_t place_of(uint32_t place, uint32_t count) {
        return place < count ? place : count - 1;
    }
};

// result[token] = sum of weight * rows[place] over the token's pairs, in the order of its choices, in float32, rounded once.
template <ElementConfig config>
struct Combine {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = expert_rows::threads, waves_per_simd = 4, lds_bytes = 0;
    static constexpr uint32_t batch = 8;  // choices whose rows are in flight together

    KITTENS_DEVICE static void run(const ExpertRowsArguments& arguments) {
        const RowColumns<T> columns = columns_of<T>(arguments, arguments.count);
        if (columns.none()) return;
        const uint32_t choices = arguments.choices.value, first = columns.row * choices;
        eight sum = 0;
        for (uint32_t choice = 0; choice < choices; choice += batch) {
            kittens::raw_eight<T> values[batch];
            float weight[batch];
            uint32_t place[batch];
            // All lanes have the same number of choices: choices missing from a batch cost a branch.
#pragma unroll
            for (uint32_t i = 0; i < batch; ++i) {
                if (choice + i >= choices) break;
                const uint32_t pair = first + choice + i;
                place[i] = static_cast<uint32_t>(((global<const int32_t>)arguments.index)[pair]);
                weight[i] = arguments.weights ? ((global<const float>)arguments.weights)[pair] : 1.0f;
            }
#pragma unroll
            for (uint32_t i = 0; i < batch; ++i) {
                if (choice + i >= choices) break;
                // For a missing pair, a valid row is read and not added, so that a NaN in it has no effect.
                values[i] = columns.load_raw(
                    arguments.rows, (place[i] < arguments.limit ? place[i] : 0) * arguments.row_step);
            }
#pragma unroll
            for (uint32_t i = 0; i < batch; ++i) {
                if (choice + i >= choices) break;
                const eight next =
                    __builtin_elementwise_fma(eight(weight[i]), kittens::widened(values[i]), sum);
                sum = place[i] < arguments.limit ? next : sum;
            }
        }
        columns.store(sum, arguments.result, static_cast<int64_t>(columns.row) * arguments.columns);
    }
};

// result[pair] = rows[place of the pair] . tokens[token of the pair] in float32, and 0 for a pair without a place.
template <ElementConfig config>
struct Dot {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = expert_rows::threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const ExpertRowsArguments& arguments) {
        const uint32_t pair = kittens::workgroup_id_x() * waves + kittens::wave_id(),
                       lane = static_cast<uint32_t>(kittens::lane_id());
        if (pair >= arguments.count) return;
        const uint32_t place = static_cast<uint32_t>(((global<const int32_t>)arguments.index)[pair]);
        eight products = 0;
        if (place < arguments.limit) {
            const int64_t row = place * arguments.row_step,
                          token = arguments.choices.quotient(pair) * arguments.token_step;
            for (uint32_t first = lane * thread_columns; first < arguments.columns;
                 first += 64 * thread_columns) {
                const auto columns =
                    RowColumns<T>::at(0, first, 1, arguments.columns, arguments.aligned != 0);
                const auto a = columns.load_raw(arguments.rows, row),
                           b = columns.load_raw(arguments.tokens, token);
                products = __builtin_elementwise_fma(kittens::widened(a), kittens::widened(b), products);
            }
        }
        float sum = 0;
#pragma unroll
        for (int i = 0; i < thread_columns; ++i) sum += products[i];
        sum = kittens::sum_of_lanes(sum);
        if (lane == 0) ((global<float>)arguments.result)[pair] = sum;
    }
};

}  // namespace hipkittens::expert_rows
