// kernels/quantize/row_values.h: the values of a row before quantization: of a gate, of a token, times factors.
// SPDX-License-Identifier: MIT
#pragma once
#include "../activation_functions.h"
#include "../element_of.h"
#include "../quantization/codes.h"
#include "kinds.h"

namespace hipkittens::quantize {

template <class T, activation::Activation kind>
KITTENS_DEVICE eight gated_by(eight gate, eight other, float alpha, float limit) {
    eight y;
#pragma unroll
    for (int i = 0; i < 8; ++i)
        y[i] = activation::gated<kind, !kittens::is_16bit<T>>(gate[i], other[i], alpha, limit).value;
    return y;
}
// The gated activation, rounded as if it were stored in between: quantized values match those of the stored tensor.
// load_bias returns eight columns of the bias, from the first column of x or of other on.
template <class T, class Load>
KITTENS_DEVICE kittens::raw_eight<T> gated(const QuantizeArguments& arguments, eight gate, eight other,
                                           const Load& load_bias) {
    if (arguments.bias) {
        gate += load_bias(0);
        other += load_bias(arguments.columns);
    }
    eight y;
    // The most common gate: without a limit, whose comparisons are a fifth of the work, and placed before the code of the others.
    constexpr auto silu = activation::Activation::silu;
    constexpr float none = __builtin_inff();
    if (__builtin_expect(arguments.activation == silu && arguments.limit == none, true))
        y = gated_by<T, silu>(gate, other, arguments.alpha, none);
    else
        activation::with_activation(arguments.activation, [&](auto constant) {
            y = gated_by<T, decltype(constant)::value>(gate, other, arguments.alpha, arguments.limit);
        });
    return __builtin_convertvector(y, kittens::raw_eight<T>);
}

// The row of x for a row, or `no_row` if it is zeros.
inline constexpr uint32_t no_row = UINT32_MAX;
KITTENS_DEVICE uint32_t row_of_x(const QuantizeArguments& arguments, uint32_t row) {
    if (!arguments.entries) return row;
    const uint32_t entry = ((__attribute__((address_space(1))) const uint32_t*)arguments.entries)[row];
    return entry < arguments.entry_limit ? arguments.choices.quotient(entry) : no_row;
}

// The row of `smooth` for a row: null if it has none.
KITTENS_DEVICE const float* factors_of(const QuantizeArguments& arguments, uint32_t row) {
    const uint32_t id = arguments.smooth_ids
                            ? ((__attribute__((address_space(1))) const uint32_t*)arguments.smooth_ids)[row]
                            : 0;
    return id < arguments.smooth_rows ? arguments.smooth + id * int64_t(arguments.columns) : nullptr;
}

}  // namespace hipkittens::quantize
