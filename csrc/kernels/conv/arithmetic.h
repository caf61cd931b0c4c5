// kernels/conv/arithmetic.h: the sum of a convolution and its activation, for one channel or several.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/transcendental.h"
#include "../element_of.h"

namespace hipkittens::conv {

template <class Value>
KITTENS_DEVICE Value fused(Value a, Value b, Value c) {
    return __builtin_elementwise_fma(a, b, c);
}
template <class Value, class Function>
KITTENS_DEVICE Value each_channel(Value value, const Function& function) {
    if constexpr (kittens::same_type<Value, float>) {
        return function(value);
    } else {
#pragma unroll
        for (unsigned c = 0; c < sizeof(Value) / sizeof(float); ++c) value[c] = function(value[c]);
        return value;
    }
}
// The sum at the time of inputs[width - 1], with the taps in order.
template <class Lane, int width>
KITTENS_DEVICE typename Lane::Value convolved(const typename Lane::Stored* inputs,
                                              const typename Lane::Stored (&taps)[width],
                                              typename Lane::Value bias) {
    typename Lane::Value sum = bias;
#pragma unroll
    for (int j = 0; j < width; ++j) sum = fused(Lane::widened(taps[j]), Lane::widened(inputs[j]), sum);
    return sum;
}
// silu.
template <bool accurate, class Value>
KITTENS_DEVICE Value activated(Value pre) {
    return each_channel(pre, [](float x) { return x * kittens::sigmoid<accurate>(x).value; });
}

}  // namespace hipkittens::conv
