// kernels/gemm/paired_columns.h: columns of C computed from two columns of the product each, a gate and its partner.
// SPDX-License-Identifier: MIT
#pragma once
#include "panels.h"

namespace hipkittens::gemm {

// Both columns of a pair must be in one lane. If a tile has two pieces, the second one has the partners of the first one's
// columns; otherwise base tiles of gates and of their partners alternate.
template <int pieces, int base_columns>
struct PairedRow {
    int gate, is_partner;

    KITTENS_DEVICE static PairedRow of(int row, int piece) {
        if constexpr (pieces == 2) return {row, piece};
        const int base = row / base_columns;
        return {base / 2 * base_columns + row % base_columns, base % 2};
    }
};

// B as in `Source`, with rows along K: the partner of a row is `pair_bytes` after it.
template <class Source, int pieces, int base_columns>
struct PairedSource : Source {
    using Row = PairedRow<pieces, base_columns>;
    int64_t pair_bytes;

    KITTENS_DEVICE PairedSource(const Source& gates, int64_t pair_bytes)
        : Source(gates), pair_bytes(pair_bytes) {}
    KITTENS_DEVICE global_window window(int k_tile) const {
        global_window window = Source::window(k_tile);
        window.remaining += pair_bytes;
        return window;
    }
    KITTENS_DEVICE auto rows_of_piece(int piece) const {
        const auto to_partner = static_cast<uint32_t>(pair_bytes);
        if constexpr (requires { this->panel_rows(); }) {
            return [rows = this->panel_rows(), to_partner, piece](Coordinate at) KITTENS_INLINE {
                const Row row = Row::of(at.row, piece);
                return rows({row.gate, at.col}) + row.is_partner * to_partner;
            };
        } else {
            const auto row_bytes = static_cast<uint32_t>(this->matrix.row_bytes());
            return [row_bytes, to_partner, piece](int tile_row) KITTENS_INLINE {
                const Row row = Row::of(tile_row, piece);
                return row.gate * row_bytes + row.is_partner * to_partner;
            };
        }
    }
};

struct PairedColumns {
    static constexpr int of_each = 2;
    template <class Operand, int pieces, class Arguments>
    KITTENS_DEVICE static auto source_of_b(const Arguments& arguments, TileCoordinate tile) {
        using T = typename Operand::Tile::element;
        const auto gates = source_of_b_rows<Operand>(arguments, tile);
        return PairedSource<decltype(source_of_b_rows<Operand>(arguments, tile)), pieces,
                            Operand::base::rows>(gates,
                                                 arguments.pair_stride * static_cast<int64_t>(sizeof(T)));
    }
};

}  // namespace hipkittens::gemm
