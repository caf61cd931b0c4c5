// tiles/move_global_register.h: a wave loads register tiles from memory and stores them to it.
// SPDX-License-Identifier: MIT
#pragma once
#include "elementwise.h"
#include "global_layout.h"

namespace kittens {

// Elements per access: a run of a row-layout tile, up to 16 bytes; single elements of a column-layout tile, whose runs go
// down the rows of a row-major matrix.
template <class Tile>
inline constexpr int elements_per_access =
    !Tile::layout::is_row ? 1
    : Tile::shape::run * sizeof(typename Tile::element) <= b128_bytes
        ? Tile::shape::run
        : b128_bytes / static_cast<int>(sizeof(typename Tile::element));

// Calls access(fragment, e, offset, col) for every access, which covers elements e, e + 1, ... of a base tile's fragment.
template <class Tile, class Fragments, class Access>
KITTENS_DEVICE void for_each_access(Fragments& tile, int64_t row_bytes, const Access& access) {
    const Coordinate first = Tile::at(lane_id(), 0, 0, 0);
#pragma unroll
    for (int n = 0; n < Tile::count; ++n)
#pragma unroll
        for (int e = 0; e < Tile::per_lane; e += elements_per_access<Tile>) {
            const Coordinate step = Tile::at(0, n / Tile::width, n % Tile::width, e);
            const int row = first.row + step.row, col = first.col + step.col;
            access(tile.base(n), e,
                   row * static_cast<uint32_t>(row_bytes) +
                       col * static_cast<uint32_t>(sizeof(typename Tile::element)),
                   col);
        }
}

// Loads from the window's first element on. Rows past the end of the matrix read zero (the buffer ends there), as do columns
// from valid_cols on. A run that straddles valid_cols is loaded element by element.
template <class T, int R, int C, class Layout, class Shape>
KITTENS_DEVICE void load(rt<T, R, C, Layout, Shape>& destination, const global_window& from,
                         int64_t row_bytes, int valid_cols = C) {
    using Tile = rt<T, R, C, Layout, Shape>;
    constexpr int width = elements_per_access<Tile>;
    const buffer source = from.view();
    for_each_access<Tile>(destination, row_bytes, [&](auto& fragment, int e, uint32_t offset, int col) {
        vec<T, width> run;
        if (width > 1 && col + width <= valid_cols) {
            run = buffer_load<vec<T, width>>(source, offset);
        } else {
#pragma unroll
            for (int n = 0; n < width; ++n)
                run[n] = buffer_load<T>(source, col + n < valid_cols ? offset + n * sizeof(T) : out_of_range);
        }
#pragma unroll
        for (int n = 0; n < width; ++n) fragment[e + n] = run[n];
    });
}

// Elements outside the matrix are not stored, as above.
template <class T, int R, int C, class Layout, class Shape>
KITTENS_DEVICE void store(const global_window& to, int64_t row_bytes,
                          const rt<T, R, C, Layout, Shape>& source, int valid_cols = C) {
    using Tile = rt<T, R, C, Layout, Shape>;
    constexpr int width = elements_per_access<Tile>;
    const buffer destination = to.view();
    for_each_access<Tile>(source, row_bytes, [&](const auto& fragment, int e, uint32_t offset, int col) {
        vec<T, width> run;
#pragma unroll
        for (int n = 0; n < width; ++n) run[n] = fragment[e + n];
        if (width > 1 && col + width <= valid_cols) {
            buffer_store(run, destination, offset);
        } else {
#pragma unroll
            for (int n = 0; n < width; ++n) {
                const T value = run[n];
                buffer_store(value, destination,
                             col + n < valid_cols ? offset + n * sizeof(T) : out_of_range);
            }
        }
    });
}

}  // namespace kittens
