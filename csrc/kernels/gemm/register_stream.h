// kernels/gemm/register_stream.h: loads an operand's K tiles from memory to the registers of one wave.
// SPDX-License-Identifier: MIT
#pragma once
#include "operand.h"

namespace hipkittens::gemm {

// Every lane loads what it multiplies, 16 bytes along K at a time. The lanes of each quarter of the wave are in 16 different rows, which the
// vector cache looks up one by one; but rows past the matrix are past its buffer and cost nothing: for operands with few rows.
template <class Operand, int tile_k>
struct RegisterStream {
    static_assert(Operand::along_k, "a lane's elements are neighbours in memory");
    using Tile = typename Operand::template Registers<Operand::rows, tile_k>;
    using T = typename Tile::element;
    static constexpr int elements = b128_bytes / static_cast<int>(sizeof(T)),  // per load
        loads = Tile::per_lane / elements;                                     // per lane and base tile
    static_assert(Tile::shape::run % elements == 0, "neighbours in a lane are neighbours in memory");
    using Run = vec<T, elements>;

    tile_iterator<tiles_of_buffer> k_tiles;  // not yet issued, after the first of the range
    uint32_t offsets[Tile::height];          // of the lane's row of each base tile
    buffer first_view;                       // of the range's first tile, which may be partial
    int valid_bytes;                         // of its rows

    template <class Source>
    KITTENS_DEVICE RegisterStream(const Source& source, KRange range)
        : first_view(source.window(range.begin).view()),
          valid_bytes(stored<T>(range.valid_k) * static_cast<int>(sizeof(T))) {
        const auto step = static_cast<uint32_t>(source.step_bytes());
        k_tiles = tiles_of_buffer::iterator(first_view, step, range.count() - 1);
        first_view.scalar_offset = (range.last - range.begin) * step;
        const Coordinate own = Tile::at(lane_id(), 0, 0, 0);
        const auto rows = rows_of(source);
#pragma unroll
        for (int i = 0; i < Tile::height; ++i)
            offsets[i] = rows(i * Tile::shape::rows + own.row) + own.col * sizeof(T);
    }
    template <class Source>
    KITTENS_DEVICE static auto rows_of(const Source& source) {
        if constexpr (requires { source.rows_of_piece(0); })
            return source.rows_of_piece(0);
        else
            return contiguous_rows{static_cast<uint32_t>(source.matrix.row_bytes())};
    }

    // Calls use(fragment, first element, row of base tiles, bytes from the lane's first element on) for every load of a lane.
    template <class Use>
    KITTENS_DEVICE static void for_each_load(Tile& tile, const Use& use) {
        for_each_index<Tile::count * loads>([&](auto n) KITTENS_INLINE {
            constexpr int base = n.value / loads, e = n.value % loads * elements;
            constexpr int col = Tile::at(0, 0, base % Tile::width, e).col * static_cast<int>(sizeof(T));
            use(tile.tiles[base / Tile::width][base % Tile::width], index<e>(), base / Tile::width, col);
        });
    }
    template <class Fragment, class Element>
    KITTENS_DEVICE static void set(Fragment& fragment, Element first, b128 values) {
        const auto run = __builtin_bit_cast(Run, values);
#pragma unroll
        for (int e = 0; e < elements; ++e) fragment[first.value + e] = run[e];
    }

    // From now on, loads return only zeros.
    KITTENS_DEVICE void close() {
        k_tiles.source.close();
        first_view.bytes = first_view.scalar_offset = 0;
    }
    KITTENS_DEVICE void issue_first(Tile& tile) const {
        const int own = Tile::at(lane_id(), 0, 0, 0).col * static_cast<int>(sizeof(T));
        for_each_load(tile, [&](auto& fragment, auto first, int i, int col) KITTENS_INLINE {
            set(fragment, first,
                buffer_load<b128>(first_view, own + col < valid_bytes ? offsets[i] + col : out_of_range));
        });
    }
    // After the loads: clears the elements past K. For one of the operands they may be anything, including NaN.
    KITTENS_DEVICE void clear_past_k(Tile& tile) const {
        const int own = Tile::at(lane_id(), 0, 0, 0).col * static_cast<int>(sizeof(T));
        for_each_load(tile, [&](auto& fragment, auto first, int, int col) KITTENS_INLINE {
            Run run;
#pragma unroll
            for (int e = 0; e < elements; ++e) run[e] = fragment[first.value + e];
            set(fragment, first, first_bytes(__builtin_bit_cast(b128, run), valid_bytes - own - col));
        });
    }
    KITTENS_DEVICE void issue(Tile& tile) {
        const buffer view = k_tiles.view();
        for_each_load(tile, [&](auto& fragment, auto first, int i, int col) KITTENS_INLINE {
            set(fragment, first, buffer_load<b128>(view, offsets[i] + col));
        });
        k_tiles.advance();
    }
};

}  // namespace hipkittens::gemm
