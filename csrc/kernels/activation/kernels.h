// kernels/activation/kernels.h: the device code of each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/row_chunk.h"
#include "../element_of.h"
#include "kinds.h"

namespace hipkittens::activation {

using kittens::eight;

// 1 / (1 + e^-z), and what it lacks to 1. The exponent of e is never positive, so that nothing overflows.
struct Sigmoid {
    float value, rest;
};
// accurate: to a float's last bits, of which a 16-bit result shows none.
template <bool accurate>
KITTENS_DEVICE Sigmoid sigmoid(float z) {
    constexpr float log2_e = 0x1.715476p+0f, log2_e_rest = 0x1.4ae0cp-26f, ln_2 = 0x1.62e43p-1f;
    // e^-200 is 0 as a float, and the products of an infinite z would be NaN.
    const float magnitude = __builtin_fminf(__builtin_fabsf(z), 200.0f), exponent = magnitude * -log2_e;
    float power = kittens::exponential_base_2(exponent);
    if constexpr (accurate) {
        const float lost = __builtin_fmaf(magnitude, -log2_e, -exponent) - magnitude * log2_e_rest;
        power = __builtin_fmaf(power, lost * ln_2, power);
    }
    const float sum = 1.0f + power;
    float larger = kittens::hardware_reciprocal(sum);
    if constexpr (accurate) larger = __builtin_fmaf(__builtin_fmaf(-sum, larger, 1.0f), larger, larger);
    const float smaller = power * larger;
    return z < 0 ? Sigmoid{smaller, larger} : Sigmoid{larger, smaller};
}

// Both activations are x sigmoid(z(x)): 1 + tanh(u) = 2 sigmoid(2 u), without the cancellation of the sum.
struct Activated {
    float value, slope;
};
template <Activation activation, bool accurate>
KITTENS_DEVICE Activated activated(float x) {
    float z = x, slope_of_z = 1.0f;
    if constexpr (activation == Activation::gelu_tanh) {
        constexpr float linear = 0x1.988454p+0f;  // sqrt(8 / pi)
        constexpr float cubic = 0x1.2444f2p-4f;   // 0.044715 sqrt(8 / pi)
        z = x * __builtin_fmaf(cubic * x, x, linear);
        slope_of_z = __builtin_fmaf(3.0f * cubic * x, x, linear);
    }
    const Sigmoid s = sigmoid<accurate>(z);
    return {x * s.value, s.value * __builtin_fmaf(x * s.rest, slope_of_z, 1.0f)};
}

// The 8 columns of a thread, fewer at the end of a row.
template <class T>
class Columns {
    template <class V>
    using global = __attribute__((address_space(1))) V*;
    // Accesses of 16 bytes want a dword's alignment.
    typedef kittens::raw_eight<T> vector __attribute__((aligned(4)));

    uint32_t count_;
    bool whole_;

  public:
    uint32_t row, first;

    KITTENS_DEVICE explicit Columns(const GatedArguments& arguments) {
        const uint32_t index = kittens::workgroup_id_x() * threads + kittens::thread_id();
        row = index / arguments.threads_per_row;
        first = (index - row * arguments.threads_per_row) * thread_columns;
        count_ = row < arguments.rows.all ? arguments.columns - first : 0;
        whole_ = arguments.aligned && count_ >= thread_columns;
    }
    KITTENS_DEVICE bool none() const { return count_ == 0; }

    KITTENS_DEVICE eight load(const void* data, int64_t offset) const {
        auto* from = (global<const T>)data + offset + first;
        if (whole_) return kittens::widened(kittens::raw_eight<T>(*(global<const vector>)from));
        eight values = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < thread_columns; ++i)
            if (i < count_) values[i] = static_cast<float>(from[i]);
        return values;
    }
    KITTENS_DEVICE void store(eight values, void* data, int64_t offset) const {
        auto* to = (global<T>)data + offset + first;
        if (whole_) {
            *(global<vector>)to = __builtin_convertvector(values, kittens::raw_eight<T>);
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < thread_columns; ++i)
            if (i < count_) to[i] = static_cast<T>(values[i]);
    }
};

template <GatedConfig config>
struct GatedForward {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = activation::threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const GatedArguments& arguments) {
        const Columns<T> columns(arguments);
        if (columns.none()) return;
        const int64_t x = arguments.x.offset(columns.row, arguments.rows);
        const eight gate = columns.load(arguments.x.data, x),
                    other = columns.load(arguments.x.data, x + arguments.columns);
        eight y;
#pragma unroll
        for (int i = 0; i < thread_columns; ++i)
            y[i] = activated<config.activation, !kittens::is_16bit<T>>(gate[i]).value * other[i];
        columns.store(y, arguments.result, static_cast<int64_t>(columns.row) * arguments.columns);
    }
};

template <GatedConfig config>
struct GatedBackward {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = activation::threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const GatedArguments& arguments) {
        const Columns<T> columns(arguments);
        if (columns.none()) return;
        const int64_t x = arguments.x.offset(columns.row, arguments.rows);
        const eight gate = columns.load(arguments.x.data, x),
                    other = columns.load(arguments.x.data, x + arguments.columns),
                    dy = columns.load(arguments.dy.data, arguments.dy.offset(columns.row, arguments.rows));
        eight dgate, dother;
#pragma unroll
        for (int i = 0; i < thread_columns; ++i) {
            const Activated a = activated<config.activation, !kittens::is_16bit<T>>(gate[i]);
            dgate[i] = dy[i] * other[i] * a.slope;
            dother[i] = dy[i] * a.value;
        }
        const int64_t dx = static_cast<int64_t>(columns.row) * 2 * arguments.columns;
        columns.store(dgate, arguments.result, dx);
        columns.store(dother, arguments.result, dx + arguments.columns);
    }
};

}  // namespace hipkittens::activation
