// kernels/gemm/paired_columns.h: columns of C that are made of two columns of the product each, a gate and what it multiplies.
// SPDX-License-Identifier: MIT
#pragma once
#include "operand.h"

namespace hipkittens::gemm {

// Both columns of a pair are to be in one lane. Where a tile is in two pieces, the second has the partners of the first's columns;
// elsewhere base tiles of gates and of their partners alternate.
template <int pieces, int base_columns>
struct PairedRows {
    uint32_t row_bytes, pair_bytes;

    KITTENS_DEVICE uint32_t operator()(int row) const {
        if constexpr (pieces == 2) return row * row_bytes;
        const int base = row / base_columns;
        return (base / 2 * base_columns + row % base_columns) * row_bytes + base % 2 * pair_bytes;
    }
};

// B as it is stored for it, rows along K: the partner of a row is `pair_bytes` behind it.
template <class Operand, int pieces, int base_columns>
struct PairedSource : Operand::Source {
    static_assert(Operand::along_k, "a column of the product is a row in memory");
    using Rows = PairedRows<pieces, base_columns>;
    int64_t pair_bytes;

    KITTENS_DEVICE PairedSource(const typename Operand::Source& gates, int64_t pair_bytes)
        : Operand::Source(gates), pair_bytes(pair_bytes) {}
    KITTENS_DEVICE global_window window(int k_tile) const {
        global_window window = Operand::Source::window(k_tile);
        window.remaining += pair_bytes;
        return window;
    }
    KITTENS_DEVICE auto rows_of_piece(int piece) const {
        const uint32_t row_bytes = static_cast<uint32_t>(this->matrix.row_bytes()),
                       to_partner = static_cast<uint32_t>(pair_bytes), begin = piece ? to_partner : 0;
        return [rows = Rows{row_bytes, to_partner}, begin](int row)
                   KITTENS_INLINE { return begin + rows(row); };
    }
};

struct PairedColumns {
    static constexpr int of_each = 2;
    template <class Operand, int pieces, class Arguments>
    KITTENS_DEVICE static auto source_of_b(const Arguments& arguments, TileCoordinate tile) {
        using T = typename Operand::Tile::element;
        using Source = PairedSource<Operand, pieces, Operand::base::rows>;
        return Source({arguments.b, tile.batch, arguments.n, arguments.k, tile.n},
                      arguments.pair_stride * static_cast<int64_t>(sizeof(T)));
    }
};

}  // namespace hipkittens::gemm
