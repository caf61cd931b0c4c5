// kernels/gemm/operand_stream.h: the loads of an operand's K tiles.
// SPDX-License-Identifier: MIT
#pragma once
#include "operand.h"

namespace hipkittens::gemm {

// Loads of an operand, a K tile of which is `pieces` tiles in LDS. All of K is in one buffer.
template <class Operand, int pieces>
struct OperandStream {
    using Tile = typename Operand::Tile;
    using Loads = typename Operand::Loads;
    static constexpr bool direct = Operand::fill == kittens::Fill::direct;

    kittens::tile_iterator<kittens::tiles_of_buffer> k_tiles;  // not yet issued, after the first of the range
    Loads loads[pieces];
    kittens::buffer first_view;  // of the range's first tile, which K may cut
    uint32_t first_offsets[pieces][Loads::passes];
    int valid_k;
    kittens::shared_byte* lds;

    template <class Source>
    KITTENS_DEVICE OperandStream(const Source& source, KRange range, kittens::shared_byte* lds)
        : k_tiles(kittens::tiles_of_buffer::iterator(Loads::prepared(source.window(range.begin).view()),
                                                     source.step_bytes(), range.count() - 1)),
          valid_k(range.valid_k),
          lds(lds) {
        first_view = Loads::prepared(source.window(range.last).view());
#pragma unroll
        for (int piece = 0; piece < pieces; ++piece) {
            const int first = piece * Operand::rows;
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
    // Through registers: every write to LDS and every load by itself, the loads behind the writes.
    static constexpr int commit_items = Loads::commit_items, items = commit_items + Loads::issue_items;
    template <int item, int set, bool refilled>
    KITTENS_DEVICE void commit_and_issue_item(int buffer) {
        if constexpr (item < commit_items)
            loads[0].template commit_item<item, set>(tile(buffer));
        else if constexpr (refilled)
            loads[0].template issue_item<item - commit_items, set>(k_tiles.view());
    }
    // This or the other operand, which is loaded alike.
    template <class Other>
    KITTENS_DEVICE void replace_where(bool replaced, const Other& other) {
        static_assert(direct && Other::Loads::passes == Loads::passes && Other::Tile::bytes == Tile::bytes,
                      "the operands are loaded alike");
        const auto take = [&](kittens::buffer& mine, kittens::buffer its) {
            mine = {replaced ? its.base : mine.base, replaced ? its.bytes : mine.bytes,
                    replaced ? its.scalar_offset : mine.scalar_offset};
        };
        take(k_tiles.source.current, other.k_tiles.source.current);
        take(first_view, other.first_view);
        if (replaced) k_tiles.source.step = other.k_tiles.source.step;
        if (replaced) lds = other.lds;
#pragma unroll
        for (int piece = 0; piece < pieces; ++piece)
#pragma unroll
            for (int pass = 0; pass < Loads::passes; ++pass)
                if (replaced) {
                    loads[piece].offsets[pass] = other.loads[piece].offsets[pass];
                    first_offsets[piece][pass] = other.first_offsets[piece][pass];
                }
    }
};

}  // namespace hipkittens::gemm
