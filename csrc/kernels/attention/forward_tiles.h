// kernels/attention/forward_tiles.h: how tiles of keys and values get from memory through LDS to registers.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "arguments.h"

namespace hipkittens::attention {

using namespace kittens;

// The rows of one head of a sequence that begins at row `first` of its batch.
template <class T>
KITTENS_DEVICE global_matrix<const T> matrix_of(const TensorArgument& tensor, int64_t batch, int64_t first,
                                                int64_t head, int rows, int cols) {
    return {static_cast<const T*>(tensor.data) + batch * tensor.batch_stride + first * tensor.row_stride +
                head * tensor.head_stride,
            tensor.row_stride, rows, cols};
}

template <class T, class SequenceMask>
KITTENS_DEVICE global_matrix<const T> query_matrix(const TensorArgument& tensor,
                                                   const SequenceOf<SequenceMask>& sequence, int head,
                                                   int head_dim) {
    return matrix_of<T>(tensor, sequence.batch, sequence.first_q, head, sequence.mask.n_q, head_dim);
}
template <class T, class SequenceMask>
KITTENS_DEVICE global_matrix<const T> key_matrix(const TensorArgument& tensor,
                                                 const SequenceOf<SequenceMask>& sequence, int key_head,
                                                 int head_dim) {
    return matrix_of<T>(tensor, sequence.batch, sequence.first_k, key_head, sequence.mask.n_k, head_dim);
}

inline constexpr Fill forward_fill = target.direct_to_lds_bytes == 16 ? Fill::direct : Fill::registers;

// The base shape whose columns match, in order, the accumulators of a product with KeyTiles (tile_key).
using KeyColumns = rt_32x16;

// Row r of a tile in LDS is key tile_key(r) of the tile: bits 2 and 3 are swapped. The accumulator of Q K^T gives a
// lane runs of 4 columns, 8 apart; with the columns in this order they are 8 consecutive keys, which is what the
// second product needs in a lane (reference: CDNA3 ISA manual 7.1.4, layouts of 32x32 accumulators and operands).
constexpr int tile_key(int row) { return (row & ~12) | (row & 4) << 1 | (row & 8) >> 1; }

// Columns from valid_cols on read as zero.
template <class Loads>
KITTENS_DEVICE void skip_columns(Loads& loads, int valid_cols) {
#pragma unroll
    for (int pass = 0; pass < Loads::passes; ++pass)
        if (Loads::position(pass, thread_id()).col >= valid_cols) loads.offsets[pass] = out_of_range;
}

// Rows of LDS tiles have power-of-two widths, as the swizzles require.
constexpr int tile_width(int columns) {
    int width = 1;
    while (width < columns) width *= 2;
    return width;
}

template <class T, int keys, int head_dim, int threads>
struct KeyTiles {
    using Tile = st<T, keys, tile_width(head_dim), Access::rows>;
    using Loads = global_to_shared<Tile, threads, forward_fill>;
    static constexpr int step = 32;
    using Registers = rt<T, keys, step, row_l, rt_32x16>;
    using Reader = base_tile_reader<T, row_l, rt_32x16, Tile>;
    Loads loads;

    KITTENS_DEVICE void init_offsets(int64_t row_bytes, int valid_cols) {
        loads.init_offsets_of(
            [=](int row) KITTENS_INLINE { return tile_key(row) * static_cast<uint32_t>(row_bytes); });
        skip_columns(loads, valid_cols);
    }
};

// gfx950 transposes in the LDS read, gfx942 on the way into LDS. Columns from the problem's head_dim on are undefined; they
// only affect the same columns of the output, which are not stored.
template <class T, int keys, int head_dim, int threads>
struct ValueTiles {
    static constexpr bool read_transposed = target.transposed_lds_read;
    using Shape = choose<read_transposed, transposed_shape<rt_32x16>, rt_32x16>;
    using Layout = choose<read_transposed, col_l, row_l>;
    using Tile = choose<read_transposed, st<T, keys, head_dim, Access::columns_32>,
                        st<T, head_dim, keys, Access::rows_written_in_runs>>;
    using Loads = choose<read_transposed, global_to_shared<Tile, threads, forward_fill>,
                         global_to_shared_transposed<Tile, threads, forward_fill>>;
    static constexpr int step = 16;
    using Registers =
        choose<read_transposed, rt<T, step, head_dim, Layout, Shape>, rt<T, head_dim, step, Layout, Shape>>;
    using Reader = base_tile_reader<T, Layout, Shape, Tile>;
    Loads loads;

    // 16 keys from `key` on and 32 columns from `col` on.
    template <int key, int col>
    KITTENS_DEVICE static auto fragment(const Reader& reader) {
        return reader.template read<read_transposed ? key : col, read_transposed ? col : key>();
    }
    KITTENS_DEVICE static void read(Registers& registers, Tile tile, int key) {
        load(registers, tile, read_transposed ? key : 0, read_transposed ? 0 : key);
    }
    template <int column>
    KITTENS_DEVICE static const auto& base_of(const Registers& registers) {
        return registers.tiles[read_transposed ? 0 : column][read_transposed ? column : 0];
    }
    template <class Output, class Probabilities>
    KITTENS_DEVICE static void multiply(Output& output, const Probabilities& p, const Registers& registers) {
        if constexpr (read_transposed)
            mma_AB(output, p, registers, output);
        else
            mma_ABt(output, p, registers, output);
    }
};

// Loads a wave's own rows from memory to registers: base tiles side by side, as operands of the first product. The row of a
// lane begins `row` bytes into the view; out_of_range: it reads zero. `sign`: bits to flip in every pair of elements.
template <class Tile, int count>
KITTENS_DEVICE void load_own_rows(Tile (&destination)[count], const buffer& view, uint32_t row, int cols,
                                  uint32_t sign) {
    using T = typename Tile::element;
    const int own_col = row_layout(Tile::shape::value(), lane_id(), 0).col;
#pragma unroll
    for (int piece = 0; piece < count; ++piece)
#pragma unroll
        for (int j = 0; j < Tile::width; ++j) {
            const int col = piece * Tile::cols + j * Tile::shape::cols + own_col;
            const b128 values = buffer_load<b128>(view, col < cols ? row + col * sizeof(T) : out_of_range);
            destination[piece].tiles[0][j] = __builtin_bit_cast(typename Tile::fragment, values ^ sign);
        }
}
// Rows first .. of a matrix. Rows past the last one read zero, or what their stride of zero repeats.
template <class Tile, int count>
KITTENS_DEVICE void load_own_rows(Tile (&destination)[count],
                                  const global_matrix<const typename Tile::element>& source, int first,
                                  uint32_t sign = 0) {
    const int own_row = row_layout(Tile::shape::value(), lane_id(), 0).row;
    const bool inside = first < source.rows;
    buffer view = source.window(inside ? first : 0, 0).view();
    if (!inside) view.bytes = 0;
    load_own_rows(destination, view, own_row * static_cast<uint32_t>(source.row_bytes()), source.cols, sign);
}

}  // namespace hipkittens::attention
