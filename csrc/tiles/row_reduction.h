// tiles/row_reduction.h: sums and maxima over the lanes and waves that share a row.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"

namespace kittens {

struct Sum {
    static constexpr float identity = 0.0f;
    template <class T>
    KITTENS_DEVICE static T combine(T a, T b) {
        return a + b;
    }
    template <class T>
    KITTENS_DEVICE static T of_16_lanes(T value) {
        return sum_of_16_lanes(value);
    }
    template <class T>
    KITTENS_DEVICE static T of_lanes(T value) {
        return sum_of_lanes(value);
    }
};
template <float (&function)(float, float)>
struct Combined {
    KITTENS_DEVICE static float combine(float a, float b) { return function(a, b); }
    KITTENS_DEVICE static float of_16_lanes(float value) { return combine_16_lanes(value, function); }
    KITTENS_DEVICE static float of_lanes(float value) { return combine_lanes(value, function); }
};
// NaN counts as the smallest value.
struct Maximum : Combined<larger> {
    static constexpr float identity = -__builtin_inff();
};
// For non-negative values; NaN counts as the largest value.
struct Magnitude : Combined<larger_or_nan> {
    static constexpr float identity = 0.0f;
};

// All lanes and waves of a row call this together; each call contains one barrier and returns the same bits in each lane. LDS is
// double-buffered: the barrier of the intervening call orders the reuse of a buffer after its reads.
template <int waves, int lanes = 64, class T = float>
class RowReduction {
    static_assert(lanes == 64 || (lanes == 16 && waves == 1));
    shared_byte* lds_;
    int buffer_ = 0;

  public:
    static constexpr int most = 2, bytes = sizeof(T), lds_bytes = waves > 1 ? 2 * most * waves * bytes : 4;

    KITTENS_DEVICE explicit RowReduction(shared_byte* lds) : lds_(lds) {}

    template <class Operation, int Count>
    KITTENS_DEVICE void reduce(T (&values)[Count]) {
        static_assert(Count <= most);
#pragma unroll
        for (T& value : values)
            value = lanes == 16 ? Operation::of_16_lanes(value) : Operation::of_lanes(value);
        if constexpr (waves > 1) {
            shared_byte* place = lds_ + buffer_ * (most * waves * bytes);
            buffer_ ^= 1;
#pragma unroll
            for (int i = 0; i < Count; ++i)  // all lanes store the same value to the same address
                lds_write(values[i], place + (i * waves + wave_id()) * bytes);
            barrier();
#pragma unroll
            for (int i = 0; i < Count; ++i) {
                values[i] = Operation::identity;
#pragma unroll
                for (int wave = 0; wave < waves; ++wave)
                    values[i] =
                        Operation::combine(values[i], lds_read<T>(place + (i * waves + wave) * bytes));
            }
        }
    }
    template <int Count>
    KITTENS_DEVICE void sum(T (&values)[Count]) {
        reduce<Sum>(values);
    }
    KITTENS_DEVICE T sum(T value) {
        T values[1] = {value};
        reduce<Sum>(values);
        return values[0];
    }
    KITTENS_DEVICE float maximum(float value) {
        float values[1] = {value};
        reduce<Maximum>(values);
        return values[0];
    }
    KITTENS_DEVICE float magnitude(float value) {
        float values[1] = {value};
        reduce<Magnitude>(values);
        return values[0];
    }
};

}  // namespace kittens
