// kernels/activation/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../activation_functions.h"
#include "../element_of.h"
#include "../row_columns.h"
#include "kinds.h"

namespace hipkittens::activation {

using kittens::eight;

template <class T>
KITTENS_DEVICE RowColumns<T> columns_of(const ActivationArguments& arguments) {
    return {kittens::workgroup_id_x() * threads + kittens::thread_id(), arguments.threads_per_row,
            arguments.rows.all, arguments.columns, arguments.aligned != 0};
}

// The inputs of the activation and its gradient: x and other, with their biases, in float32.
struct Operands {
    eight gate, other;
};
template <bool gated, class T>
KITTENS_DEVICE Operands operands(const ActivationArguments& arguments, const RowColumns<T>& columns) {
    const auto load = [&](const StridedRows& of) {
        return columns.load_raw(of.data, of.offset(columns.row, arguments.rows));
    };
    const auto gate = load(arguments.x);
    auto other = gate;
    if constexpr (gated) other = load(arguments.other);
    Operands result{kittens::widened(gate), kittens::widened(other)};
    if constexpr (gated)
        if (arguments.bias) {
            result.gate += columns.load(arguments.bias, 0);
            result.other += columns.load(arguments.bias, arguments.columns);
        }
    return result;
}

template <ActivationConfig config>
struct Forward {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = activation::threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const ActivationArguments& arguments) {
        constexpr bool accurate = !kittens::is_16bit<T>;
        const RowColumns<T> columns = columns_of<T>(arguments);
        if (columns.none()) return;
        const auto [gate, other] = operands<config.gated>(arguments, columns);
        eight y;
        with_activation(arguments.activation, [&](auto constant) {
            constexpr Activation activation = decltype(constant)::value;
#pragma unroll
            for (int i = 0; i < thread_columns; ++i)
                y[i] = config.gated
                           ? gated<activation, accurate>(gate[i], other[i], arguments.alpha, arguments.limit)
                                 .value
                           : activated<activation, accurate>(gate[i], arguments.alpha).value;
        });
        columns.store(y, arguments.result, columns.row * arguments.result_step);
    }
};

template <ActivationConfig config>
struct Backward {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = activation::threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const ActivationArguments& arguments) {
        constexpr bool accurate = !kittens::is_16bit<T>;
        const RowColumns<T> columns = columns_of<T>(arguments);
        if (columns.none()) return;
        const auto dy_as_stored =
            columns.load_raw(arguments.dy.data, arguments.dy.offset(columns.row, arguments.rows));
        const auto [gate, other] = operands<config.gated>(arguments, columns);
        const eight dy = kittens::widened(dy_as_stored);
        eight dgate, dother;
        with_activation(arguments.activation, [&](auto constant) {
            constexpr Activation activation = decltype(constant)::value;
#pragma unroll
            for (int i = 0; i < thread_columns; ++i) {
                if constexpr (config.gated) {
                    const Gated g =
                        gated<activation, accurate>(gate[i], other[i], arguments.alpha, arguments.limit);
                    dgate[i] = dy[i] * g.dgate;
                    dother[i] = dy[i] * g.dother;
                } else {
                    dgate[i] = dy[i] * activated<activation, accurate>(gate[i], arguments.alpha).slope;
                }
            }
        });
        columns.store(dgate, arguments.result, columns.row * arguments.result_step);
        if constexpr (config.gated)
            columns.store(dother, arguments.dother, columns.row * arguments.result_step);
    }
};

}  // namespace hipkittens::activation
