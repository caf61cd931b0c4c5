// kernels/gemm/operand_stream.h: the loads of an operand's K tiles.
// SPDX-License-Identifier: MIT
#pragma once
#include "operand.h"

namespace hipkittens::gemm {

// Loads of an operand whose K tiles consist of `pieces` tiles in LDS.
template <class Operand, int pieces>
struct OperandStream {
    using Tile = typename Operand::Tile;
    using Loads = typename Operand::Loads;
    static constexpr bool direct = Operand::fill == Fill::direct;

    // All of K is in one buffer, except for unaligned rows, which may be anywhere.
    static constexpr bool one_buffer = Operand::fill != Fill::elements;
    using TileSource = choose<one_buffer, tiles_of_buffer, tiles_of_window>;

    tile_iterator<TileSource> k_tiles;  // not yet issued, after the first of the range
    Loads loads[pieces];
    buffer first_view;  // of the range's first tile, which may be partial
    uint32_t first_offsets[pieces][Loads::passes];
    int valid_k;
    shared_byte* lds;

    template <class Source>
    KITTENS_DEVICE static auto tiles_behind_first(const Source& source, KRange range) {
        const global_window window = source.window(range.begin);
        const int64_t step = source.step_bytes();
        if constexpr (one_buffer)
            return TileSource::iterator(Loads::prepared(window.view()), step, range.count() - 1);
        else
            return tile_iterator<TileSource>{{window, step}, range.count() - 1};
    }
    template <class Source>
    KITTENS_DEVICE OperandStream(const Source& source, KRange range, shared_byte* lds)
        : k_tiles(tiles_behind_first(source, range)), valid_k(range.valid_k), lds(lds) {
        first_view = Loads::prepared(source.window(range.last).view());
#pragma unroll
        for (int piece = 0; piece < pieces; ++piece) {
            const int first = piece * Operand::rows;
            if constexpr (requires { source.rows_of_piece(piece); })
                loads[piece].init_offsets_of(source.rows_of_piece(piece));
            else
                loads[piece].init_offsets(source.matrix.row_bytes(), Operand::along_k ? first : 0,
                                          Operand::along_k ? 0 : first);
            if constexpr (direct)
                loads[piece].mask(first_offsets[piece], Operand::valid_rows(valid_k),
                                  Operand::valid_cols(valid_k));
        }
    }
    KITTENS_DEVICE Tile tile(int buffer, int piece = 0) const {
        return {lds + (buffer * pieces + piece) * Tile::bytes};
    }
    // From now on, loads return only zeros.
    KITTENS_DEVICE void close() {
        k_tiles.source.close();
        first_view.bytes = first_view.scalar_offset = 0;
    }
    template <int set = 0>
    KITTENS_DEVICE void issue_first(int piece) {
        if constexpr (direct)
            loads[piece].issue_at(first_view, tile(0, piece), first_offsets[piece]);
        else
            loads[piece].template issue_valid<set>(first_view, tile(0, piece), Operand::valid_rows(valid_k),
                                                   Operand::valid_cols(valid_k));
    }
    template <int piece = 0, int set = 0>
    KITTENS_DEVICE void issue(int buffer) {
        loads[piece].template issue_prepared<set>(k_tiles.view(), tile(buffer, piece));
    }
    // Through registers: each write to LDS and each load separately, with the loads after the writes.
    static constexpr int commit_items = Loads::commit_items, items = commit_items + Loads::issue_items;
    template <int item, int set, bool refilled>
    KITTENS_DEVICE void commit_and_issue_item(int buffer) {
        if constexpr (item < commit_items)
            loads[0].template commit_item<item, set>(tile(buffer));
        else if constexpr (refilled)
            loads[0].template issue_item<item - commit_items, set>(k_tiles.view(), tile(buffer));
    }
    // This operand or the other one, which is loaded in the same way.
    template <class Other>
    KITTENS_DEVICE void replace_where(bool replaced, const Other& other) {
        static_assert(direct && Other::Loads::passes == Loads::passes && Other::Tile::bytes == Tile::bytes,
                      "the operands are loaded alike");
        const auto take = [&](auto& mine, auto its) KITTENS_INLINE { mine = replaced ? its : mine; };
        const auto take_buffer = [&](buffer& mine, buffer its) KITTENS_INLINE {
            take(mine.base, its.base), take(mine.bytes, its.bytes),
                take(mine.scalar_offset, its.scalar_offset);
        };
        take_buffer(k_tiles.source.current, other.k_tiles.source.current);
        take_buffer(first_view, other.first_view);
        take(k_tiles.source.step, other.k_tiles.source.step);
        take(lds, other.lds);
#pragma unroll
        for (int piece = 0; piece < pieces; ++piece)
#pragma unroll
            for (int pass = 0; pass < Loads::passes; ++pass) {
                take(loads[piece].offsets[pass], other.loads[piece].offsets[pass]);
                take(first_offsets[piece][pass], other.first_offsets[piece][pass]);
            }
    }
};

}  // namespace hipkittens::gemm
