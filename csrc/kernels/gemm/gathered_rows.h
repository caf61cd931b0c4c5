// kernels/gemm/gathered_rows.h: A with rows that are gathered from tokens while its tiles are loaded.
// SPDX-License-Identifier: MIT
#pragma once
#include "panels.h"

namespace hipkittens::gemm {

// The byte offset in A of a row of a tile: that of token entries[row] / choices, or of the row itself if there are no entries. Rows past
// the end of the group and entries that do not refer to a token are mapped past the end of the buffer, and read as zeros.
struct GatheredRows {
    buffer entries;
    Divisor choices;
    uint32_t row_bytes;
    int tile_row, piece_row;  // the first row of the tile, and of the piece in the tile
    int past, tokens;         // end of the group; number of rows of A
    bool gathers;

    KITTENS_DEVICE uint32_t operator()(int row) const {
        row += piece_row;
        if (!gathers) return static_cast<uint32_t>(row) * row_bytes;
        const int own = tile_row + row;
        const auto entry = buffer_load<uint32_t>(entries, static_cast<uint32_t>(own) * 4);
        const uint32_t token = choices.quotient(entry), none = static_cast<uint32_t>(tokens);
        return (own < past && token < none ? token : none) * row_bytes;
    }
};

template <class Operand>
struct GatheredSource : Operand::Source {
    GatheredRows rows;

    // Without entries the window begins with the tile's first row, like that of other operands; with entries it is all of A.
    template <class Arguments>
    KITTENS_DEVICE GatheredSource(const Arguments& arguments, TileCoordinate tile, bool gathers)
        : Operand::Source(arguments.a, tile.batch, gathers ? arguments.tokens : arguments.m, arguments.k,
                          gathers ? 0 : tile.m),
          rows{{reinterpret_cast<const char*>(arguments.entries), static_cast<uint32_t>(arguments.m) * 4},
               arguments.choices,
               static_cast<uint32_t>(this->matrix.row_bytes()),
               tile.m,
               0,
               arguments.m,
               arguments.tokens,
               gathers} {}
    KITTENS_DEVICE GatheredRows rows_of_piece(int piece) const {
        GatheredRows result = rows;
        result.piece_row = piece * Operand::rows;
        return result;
    }
};

// Whether a kernel may gather the rows of A, by its arguments.
template <class Operand, class Arguments>
inline constexpr bool gathers_rows = requires(const Arguments& arguments) { arguments.entries; } &&
                                     Operand::along_k && Operand::fill != Fill::elements;

template <class Operand, class Arguments>
KITTENS_DEVICE auto source_of_a_rows(const Arguments& arguments, TileCoordinate tile) {
    if constexpr (gathers_rows<Operand, Arguments>)
        return GatheredSource<Operand>(arguments, tile, arguments.entries != nullptr);
    else
        return typename Operand::Source(arguments.a, tile.batch, arguments.m, arguments.k, tile.m);
}

}  // namespace hipkittens::gemm
