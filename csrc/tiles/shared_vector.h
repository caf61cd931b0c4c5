// tiles/shared_vector.h: sv, a vector in LDS, and its movements.
// SPDX-License-Identifier: MIT
#pragma once
#include "elementwise.h"
#include "global_layout.h"

namespace kittens {

template <class T, int Length>
struct sv {
    using element = T;
    static constexpr int length = Length, bytes = Length * sizeof(T);
    shared_byte* data;

    // A part of it: Count elements from `first` on.
    template <int Count>
    KITTENS_DEVICE sv<T, Count> part(int first) const {
        return {data + first * static_cast<int>(sizeof(T))};
    }
};

// A workgroup of Threads fills a shared vector; elements from `valid` on are zero.
template <int Threads, class T, int N>
KITTENS_DEVICE void load(sv<T, N> destination, const global_window& from, int valid = N) {
    const buffer source = from.view();
#pragma clang loop unroll(disable) vectorize(disable)
    for (int index = thread_id(); index < N; index += Threads)
        lds_write(buffer_load<T>(source, index < valid ? index * sizeof(T) : out_of_range),
                  destination.data + index * static_cast<int>(sizeof(T)));
}
template <int Threads, class T, int N>
KITTENS_DEVICE void store(const global_window& to, sv<T, N> source, int valid = N) {
    const buffer destination = to.view();
#pragma clang loop unroll(disable) vectorize(disable)
    for (int index = thread_id(); index < N; index += Threads) {
        const T value = lds_read<T>(source.data + index * static_cast<int>(sizeof(T)));
        buffer_store(value, destination, index < valid ? index * sizeof(T) : out_of_range);
    }
}

// A wave reads or writes all of it.
template <class T, int N, class Layout, class Shape>
KITTENS_DEVICE void load(rv<T, N, Layout, Shape>& destination, sv<T, N> source) {
    using Vector = rv<T, N, Layout, Shape>;
    const int lane = lane_id();
    for_each_vector_register<Vector>([&](int i, int e) {
        const int index = Vector::at(lane, i, e);
        destination.tiles[i][e] =
            index < N ? lds_read<T>(source.data + index * static_cast<int>(sizeof(T))) : T(0);
    });
}
template <class T, int N, class Layout, class Shape>
KITTENS_DEVICE void store(sv<T, N> destination, const rv<T, N, Layout, Shape>& source) {
    using Vector = rv<T, N, Layout, Shape>;
    const int lane = lane_id();
    for_each_vector_register<Vector>([&](int i, int e) {
        const int index = Vector::at(lane, i, e);
        const T value = source.tiles[i][e];
        if (index < N) lds_write(value, destination.data + index * static_cast<int>(sizeof(T)));
    });
}

}  // namespace kittens
