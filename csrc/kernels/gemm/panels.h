// kernels/gemm/panels.h: B with rows in panels (preshuffled weights).
// SPDX-License-Identifier: MIT
#pragma once
#include "epilogue.h"
#include "operand.h"

namespace hipkittens::gemm {

// A panel of 16 or 32 rows stores the first 16 bytes of each row consecutively, then the next 16 of each, as AITER's shuffle_weight and
// hipkittens.preshuffle produce: a tile reads one contiguous block of each panel. Panels of one row are plain rows.
template <class T>
struct PanelRows {
    uint32_t row_bytes, shift;  // of the whole row; log2 of the rows of a panel
    int first;                  // row of the window that is row 0

    KITTENS_DEVICE uint32_t operator()(Coordinate at) const {
        const uint32_t row = static_cast<uint32_t>(first + at.row), inside = row & ((1u << shift) - 1),
                       byte = static_cast<uint32_t>(at.col) * static_cast<uint32_t>(sizeof(T));
        return (row - inside) * row_bytes + inside * b128_bytes + (byte << shift);
    }
};

// Windows begin with the panel that contains the workgroup's first row.
template <class Operand>
struct PanelSource : Operand::Source {
    static_assert(Operand::along_k, "panels have rows along K");
    using Base = typename Operand::Source;
    using T = typename Operand::Tile::element;
    uint32_t shift;
    int inside;  // the workgroup's first row in its panel

    KITTENS_DEVICE PanelSource(const Base& rows, uint32_t shift)
        : Base(rows), shift(shift), inside(rows.origin & ((1 << shift) - 1)) {}
    KITTENS_DEVICE int64_t step_bytes() const { return Base::step_bytes() << shift; }
    KITTENS_DEVICE global_window window(int k_tile) const {
        global_window window = this->matrix.window(this->origin - inside, 0);
        window.advance(k_tile * step_bytes());
        return window;
    }
    KITTENS_DEVICE PanelRows<T> panel_rows() const {
        return {static_cast<uint32_t>(this->matrix.row_bytes()), shift, inside};
    }
    KITTENS_DEVICE PanelRows<T> rows_of_piece(int piece) const {
        PanelRows<T> rows = panel_rows();
        rows.first += piece * Operand::rows;
        return rows;
    }
};

// Whether a kernel's B may be in panels, by its arguments.
template <class Operand, class Arguments>
inline constexpr bool reads_panels =
    MayHavePanels<Arguments> && Operand::along_k && Operand::fill != Fill::elements &&
    !is_float6<typename Operand::Tile::element>;

template <class Operand, class Arguments>
KITTENS_DEVICE auto source_of_b_rows(const Arguments& arguments, TileCoordinate tile) {
    const typename Operand::Source rows(arguments.b, tile.batch, arguments.n, arguments.k, tile.n);
    if constexpr (reads_panels<Operand, Arguments>)
        return PanelSource<Operand>(rows, arguments.b_panel_shift);
    else
        return rows;
}

}  // namespace hipkittens::gemm
