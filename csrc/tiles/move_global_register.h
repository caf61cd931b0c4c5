// tiles/move_global_register.h: a wave loads and stores register tiles and vectors from and to memory.
// SPDX-License-Identifier: MIT
#pragma once
#include "elementwise.h"
#include "global_layout.h"

namespace kittens {

// Registers of one run, as wide an access as 16 bytes.
template <class Tile>
inline constexpr int elements_per_access = Tile::shape::run * sizeof(typename Tile::element) <= b128_bytes
                                               ? Tile::shape::run
                                               : b128_bytes / sizeof(typename Tile::element);

// Calls access(i, j, e, offset, row, col) for every group of elements that one access covers: a run of a
// row-layout tile, single elements of a column-layout one (its runs go down the rows of a row-major matrix).
template <class Tile, class Access>
KITTENS_DEVICE void for_each_access(uint32_t row_bytes, const Access& access) {
    constexpr int width = Tile::layout::is_row ? elements_per_access<Tile> : 1;
    const Coordinate own = Tile::layout::at(Tile::shape::value(), lane_id(), 0);
#pragma unroll
    for (int i = 0; i < Tile::height; ++i)
#pragma unroll
        for (int j = 0; j < Tile::width; ++j)
#pragma unroll
            for (int e = 0; e < Tile::per_lane; e += width) {
                const Coordinate step = Tile::layout::at(Tile::shape::value(), 0, e);
                const int row = i * Tile::shape::rows + step.row + own.row;
                const int col = j * Tile::shape::cols + step.col + own.col;
                access(i, j, e, row * row_bytes + col * static_cast<uint32_t>(sizeof(typename Tile::element)),
                       row, col);
            }
}

// From the window's first element on. Rows below the matrix read zero (the buffer ends there); columns from
// valid_cols on too. A run that valid_cols cuts is loaded element by element.
template <class T, int R, int C, class Layout, class Shape>
KITTENS_DEVICE void load(rt<T, R, C, Layout, Shape>& destination, const global_window& from,
                         int64_t row_bytes, int valid_cols = C) {
    using Tile = rt<T, R, C, Layout, Shape>;
    const buffer source = from.view();
    for_each_access<Tile>(
        static_cast<uint32_t>(row_bytes), [&](int i, int j, int e, uint32_t offset, int, int col) {
            if constexpr (Layout::is_row) {
                constexpr int width = elements_per_access<Tile>;
                using Run = vec<T, width>;
                Run run{};
                if (col + width <= valid_cols) {
                    run = buffer_load<Run>(source, offset);
                } else {
#pragma unroll
                    for (int n = 0; n < width; ++n)
                        run[n] = buffer_load<T>(source,
                                                col + n < valid_cols ? offset + n * sizeof(T) : out_of_range);
                }
#pragma unroll
                for (int n = 0; n < width; ++n) destination.tiles[i][j][e + n] = run[n];
            } else {
                destination.tiles[i][j][e] = buffer_load<T>(source, col < valid_cols ? offset : out_of_range);
            }
        });
}

// Nothing is stored outside the matrix, as above.
template <class T, int R, int C, class Layout, class Shape>
KITTENS_DEVICE void store(const global_window& to, int64_t row_bytes,
                          const rt<T, R, C, Layout, Shape>& source, int valid_cols = C) {
    using Tile = rt<T, R, C, Layout, Shape>;
    const buffer destination = to.view();
    for_each_access<Tile>(
        static_cast<uint32_t>(row_bytes), [&](int i, int j, int e, uint32_t offset, int, int col) {
            if constexpr (Layout::is_row) {
                constexpr int width = elements_per_access<Tile>;
                vec<T, width> run;
#pragma unroll
                for (int n = 0; n < width; ++n) run[n] = source.tiles[i][j][e + n];
                if (col + width <= valid_cols) {
                    buffer_store(run, destination, offset);
                } else {
#pragma unroll
                    for (int n = 0; n < width; ++n) {
                        const T value = run[n];
                        buffer_store(value, destination,
                                     col + n < valid_cols ? offset + n * sizeof(T) : out_of_range);
                    }
                }
            } else {
                const T value = source.tiles[i][j][e];
                buffer_store(value, destination, col < valid_cols ? offset : out_of_range);
            }
        });
}

// Vectors: `valid` elements from the window on.
template <class T, int N, class Layout, class Shape>
KITTENS_DEVICE void load(rv<T, N, Layout, Shape>& destination, const global_window& from, int valid = N) {
    using Vector = rv<T, N, Layout, Shape>;
    const buffer source = from.view();
    const int lane = lane_id();
    for_each_vector_register<Vector>([&](int i, int e) {
        const int index = Vector::at(lane, i, e);
        destination.tiles[i][e] = buffer_load<T>(source, index < valid ? index * sizeof(T) : out_of_range);
    });
}
// Lanes that hold the same element store the same value.
template <class T, int N, class Layout, class Shape>
KITTENS_DEVICE void store(const global_window& to, const rv<T, N, Layout, Shape>& source, int valid = N) {
    using Vector = rv<T, N, Layout, Shape>;
    const buffer destination = to.view();
    const int lane = lane_id();
    for_each_vector_register<Vector>([&](int i, int e) {
        const int index = Vector::at(lane, i, e);
        const T value = source.tiles[i][e];
        buffer_store(value, destination, index < valid ? index * sizeof(T) : out_of_range);
    });
}

}  // namespace kittens
