// kernels/rotary/rotary.h: pairs of features rotated by an angle that depends on the token.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/row_chunk.h"
#include "config.h"

namespace hipkittens::rotary {

using kittens::eight;

// Device memory, with the alignment that 16-byte accesses need: a dword.
template <class T>
using global = __attribute__((address_space(1))) T*;
template <class T>
struct Eight {
    typedef kittens::raw_eight<T> aligned __attribute__((aligned(4)));
};

template <class T>
KITTENS_DEVICE eight read_eight(const T* from) {
    return kittens::widened(kittens::raw_eight<T>(*(global<const typename Eight<T>::aligned>)from));
}
template <class T>
KITTENS_DEVICE void write_eight(T* to, eight values) {
    *(global<typename Eight<T>::aligned>)to = __builtin_convertvector(values, kittens::raw_eight<T>);
}
template <class T>
KITTENS_DEVICE float read(const T* from) {
    return static_cast<float>(*(global<const T>)from);
}
template <class T>
KITTENS_DEVICE void write(T* to, float value) {
    *(global<T>)to = static_cast<T>(value);
}

// (a, b) -> (a cos - b sin, a sin + b cos), of each the first product without rounding.
template <class V>
KITTENS_DEVICE void rotate_pairs(V& a, V& b, V cos, V sin) {
    const V first = __builtin_elementwise_fma(a, cos, -(b * sin));
    b = __builtin_elementwise_fma(a, sin, b * cos);
    a = first;
}

// Row of the tables for a token. An id outside of them is never looked up, and gives NaN instead.
struct Angle {
    int64_t row;
    bool known;
    KITTENS_DEVICE Angle(const RotaryArguments& arguments, uint32_t batch, uint32_t token) {
        row = token + arguments.offset;
        if (arguments.positions) {
            const int64_t index = batch * arguments.position_batch + token * arguments.position_token;
            row = arguments.position_bytes == 8 ? static_cast<const int64_t*>(arguments.positions)[index]
                                                : static_cast<const int32_t*>(arguments.positions)[index];
        }
        known = row >= 0 && row < arguments.table_rows;
        if (!known) row = 0;
    }
};

// A lane takes 8 pairs of a head, or 16 of the features behind the pairs; the lanes of a wave share a token.
template <class T, class Table>
KITTENS_DEVICE void rotate(const RotaryArguments& arguments) {
    const uint32_t index = kittens::workgroup_id_x() * waves + kittens::wave_id();
    const uint32_t batch = index / arguments.tokens, token = index - batch * arguments.tokens;
    if (batch >= arguments.batch) return;
    const Angle angle(arguments, batch, token);
    const Table* cosines = static_cast<const Table*>(arguments.cos) + angle.row * arguments.cos_stride;
    const Table* sines = static_cast<const Table*>(arguments.sin) + angle.row * arguments.sin_stride;
    const float sign = arguments.inverse ? -1.0f : 1.0f, poison = angle.known ? 1.0f : __builtin_nanf("");
    const int pairs = arguments.pairs, rest = arguments.copies_rest ? arguments.features - 2 * pairs : 0;
    const uint32_t rotated = (pairs + 7) / 8, units = rotated + (rest + 15) / 16;

    for (const Rotated& part : arguments.parts) {
        const int64_t in = batch * part.in.batch + token * part.in.token;
        const int64_t out = batch * part.out.batch + token * part.out.token;
        for (uint32_t item = kittens::lane_id(); item < part.heads * units; item += kittens::wave_lanes) {
            const uint32_t head = item / units, unit = item - head * units;
            const T* source = static_cast<const T*>(part.in.data) + in + head * part.in.head;
            T* destination = static_cast<T*>(const_cast<void*>(part.out.data)) + out + head * part.out.head;
            const int first = unit * pairs_per_lane;
            if (unit >= rotated) {
                const int begin = 2 * pairs + (unit - rotated) * 16;
                if (arguments.wide) {
                    write_eight(destination + begin, read_eight(source + begin));
                    write_eight(destination + begin + 8, read_eight(source + begin + 8));
                } else {
                    for (int i = begin; i < begin + 16 && i < arguments.features; ++i)
                        write(destination + i, read(source + i));
                }
            } else if (arguments.wide) {
                const eight cos = read_eight(cosines + first) * poison,
                            sin = read_eight(sines + first) * sign;
                if (arguments.interleaved) {
                    const eight low = read_eight(source + 2 * first),
                                high = read_eight(source + 2 * first + 8);
                    eight a = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14);
                    eight b = __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15);
                    rotate_pairs(a, b, cos, sin);
                    write_eight(destination + 2 * first,
                                __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11));
                    write_eight(destination + 2 * first + 8,
                                __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15));
                } else {
                    eight a = read_eight(source + first), b = read_eight(source + first + pairs);
                    rotate_pairs(a, b, cos, sin);
                    write_eight(destination + first, a);
                    write_eight(destination + first + pairs, b);
                }
            } else {
                for (int i = first; i < first + pairs_per_lane && i < pairs; ++i) {
                    const int at_a = arguments.interleaved ? 2 * i : i;
                    const int at_b = arguments.interleaved ? 2 * i + 1 : i + pairs;
                    float a = read(source + at_a), b = read(source + at_b);
                    rotate_pairs(a, b, read(cosines + i) * poison, read(sines + i) * sign);
                    write(destination + at_a, a);
                    write(destination + at_b, b);
                }
            }
        }
    }
}

template <class T>
KITTENS_DEVICE void run(const RotaryArguments& arguments) {
    if (arguments.table_type == ElementType::f32)
        rotate<T, float>(arguments);
    else if (arguments.table_type == ElementType::bf16)
        rotate<T, kittens::bf16>(arguments);
    else
        rotate<T, kittens::half>(arguments);
}

}  // namespace hipkittens::rotary
