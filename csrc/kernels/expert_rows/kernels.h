// kernels/expert_rows/kernels.h: the device code of each kind of rows.
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

template <class T>
KITTENS_DEVICE RowColumns<T> columns_of(const ExpertRowsArguments& arguments) {
    return {kittens::workgroup_id_x() * threads + kittens::thread_id(), arguments.threads_per_row,
            arguments.count, arguments.columns, arguments.aligned != 0};
}

// result[place] = weight of its pair * rows[token of its pair], and 0 where a place has no pair.
template <ElementConfig config>
struct Gather {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = expert_rows::threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const ExpertRowsArguments& arguments) {
        const RowColumns<T> columns = columns_of<T>(arguments);
        if (columns.none()) return;
        const uint32_t pair = static_cast<uint32_t>(((global<const int32_t>)arguments.index)[columns.row]);
        eight values = 0;
        if (pair < arguments.limit) {
            values = columns.load(arguments.rows, arguments.choices.quotient(pair) * arguments.row_step);
            if (arguments.weights) values *= ((global<const float>)arguments.weights)[pair];
        }
        columns.store(values, arguments.result, static_cast<int64_t>(columns.row) * arguments.columns);
    }
};

// result[token] = sum of weight * rows[place] over the token's pairs, the first choice first, in float32, rounded once.
template <ElementConfig config>
struct Combine {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = expert_rows::threads, waves_per_simd = 4, lds_bytes = 0;
    static constexpr uint32_t batch = 4;  // loads in flight

    KITTENS_DEVICE static void run(const ExpertRowsArguments& arguments) {
        const RowColumns<T> columns = columns_of<T>(arguments);
        if (columns.none()) return;
        const uint32_t choices = arguments.choices.value, first = columns.row * choices;
        eight sum = 0;
        for (uint32_t choice = 0; choice < choices; choice += batch) {
            kittens::raw_eight<T> values[batch];
            float weight[batch];
            bool is_there[batch];
#pragma unroll
            for (uint32_t i = 0; i < batch; ++i) {
                // What is not there is read from where something is, and not added: a NaN of another row stays there.
                const uint32_t pair = first + (choice + i < choices ? choice + i : 0);
                const uint32_t place = static_cast<uint32_t>(((global<const int32_t>)arguments.index)[pair]);
                is_there[i] = choice + i < choices && place < arguments.limit;
                values[i] = columns.load_raw(arguments.rows,
                                             (place < arguments.limit ? place : 0) * arguments.row_step);
                weight[i] = arguments.weights ? ((global<const float>)arguments.weights)[pair] : 1.0f;
            }
#pragma unroll
            for (uint32_t i = 0; i < batch; ++i) {
                const eight next =
                    __builtin_elementwise_fma(eight(weight[i]), kittens::widened(values[i]), sum);
                sum = is_there[i] ? next : sum;
            }
        }
        columns.store(sum, arguments.result, static_cast<int64_t>(columns.row) * arguments.columns);
    }
};

// result[pair] = rows[place of the pair] . tokens[token of the pair] in float32, and 0 where a pair has no place.
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
