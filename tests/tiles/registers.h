// tests/tiles/registers.h: registers of test kernels to and from memory, lane by lane.
// SPDX-License-Identifier: MIT
// Independent of the layouts under test: memory holds [register][lane], and Python knows what belongs where.
#pragma once
#include "tiles/tiles.h"

struct Arguments {
    const void *a, *b, *c;
    void* out;
    int64_t stride;  // of out's or a's rows, in elements
    int rows, cols;
    int number;
    float scalar;
};

#define TEST_KERNEL(name, threads)                                                               \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads))) void name( \
        Arguments arguments)

template <class Tile>
KITTENS_DEVICE void take(Tile& tile, const void* memory) {
    using T = typename Tile::element;
    const T* values = static_cast<const T*>(memory) + kittens::lane_id();
    kittens::for_each_register<Tile>([&](int i, int j, int e) {
        tile.tiles[i][j][e] = values[((i * Tile::width + j) * Tile::per_lane + e) * 64];
    });
}
template <class Tile>
KITTENS_DEVICE void give(void* memory, const Tile& tile) {
    using T = typename Tile::element;
    T* values = static_cast<T*>(memory) + kittens::lane_id();
    kittens::for_each_register<Tile>([&](int i, int j, int e) {
        values[((i * Tile::width + j) * Tile::per_lane + e) * 64] = tile.tiles[i][j][e];
    });
}
template <class Vector>
KITTENS_DEVICE void take_vector(Vector& vector, const void* memory) {
    using T = typename Vector::element;
    const T* values = static_cast<const T*>(memory) + kittens::lane_id();
    for (int n = 0; n < Vector::count * Vector::per_lane; ++n)
        vector.tiles[n / Vector::per_lane][n % Vector::per_lane] = values[n * 64];
}
template <class Vector>
KITTENS_DEVICE void give_vector(void* memory, const Vector& vector) {
    using T = typename Vector::element;
    T* values = static_cast<T*>(memory) + kittens::lane_id();
    for (int n = 0; n < Vector::count * Vector::per_lane; ++n)
        values[n * 64] = vector.tiles[n / Vector::per_lane][n % Vector::per_lane];
}
