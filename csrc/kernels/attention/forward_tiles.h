// kernels/attention/forward_tiles.h: how tiles of keys and values travel from memory through LDS to registers.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "arguments.h"

namespace hipkittens::attention {

// The rows of one head of a sequence that begins at row `first` of its batch.
template <class T>
KITTENS_DEVICE kittens::global_matrix<const T> matrix_of(const TensorArgument& tensor, int64_t batch,
                                                         int64_t first, int64_t head, int rows, int cols) {
    return {static_cast<const T*>(tensor.data) + batch * tensor.batch_stride + first * tensor.row_stride +
                head * tensor.head_stride,
            tensor.row_stride, rows, cols};
}

template <class T>
KITTENS_DEVICE kittens::global_matrix<const T> query_matrix(const TensorArgument& tensor,
                                                            const Sequence& sequence, int head,
                                                            int head_dim) {
    return matrix_of<T>(tensor, sequence.batch, sequence.first_q, head, sequence.mask.n_q, head_dim);
}
template <class T>
KITTENS_DEVICE kittens::global_matrix<const T> key_matrix(const TensorArgument& tensor,
                                                          const Sequence& sequence, int key_head,
                                                          int head_dim) {
    return matrix_of<T>(tensor, sequence.batch, sequence.first_k, key_head, sequence.mask.n_k, head_dim);
}

inline constexpr kittens::Fill forward_fill =
    kittens::target.direct_to_lds_bytes == 16 ? kittens::Fill::direct : kittens::Fill::registers;

// Tiles of the rows of a matrix, one after the other. Past the last one the view is empty: its loads touch no memory and
// fill LDS with zeros.
struct TileWindows {
    const char* base;
    int64_t step;
    uint32_t whole, last, none;  // bytes of a tile, of the last one, past it
    int left;                    // tiles not yet begun to load

    // Of keys `key` .. `past` - 1 of the matrix; `lead`: loads begin so many bytes early (load_global_to_shared.h).
    template <int keys, class T>
    KITTENS_DEVICE void begin(const kittens::global_matrix<T>& matrix, int key, int past, uint32_t lead) {
        const auto row_bytes = static_cast<uint32_t>(matrix.row_bytes());
        const uint32_t row = matrix.cols * static_cast<uint32_t>(sizeof(T)) + lead;
        left = (past - key + keys - 1) / keys;
        const int rows = matrix.rows - key - (left - 1) * keys;
        base = reinterpret_cast<const char*>(matrix.data) + key * matrix.row_bytes() - lead;
        step = keys * matrix.row_bytes();
        whole = (keys - 1) * row_bytes + row;
        last = rows < keys ? (rows - 1) * row_bytes + row : whole;
        none = lead;
    }
    KITTENS_DEVICE kittens::buffer next() {
        // Values, not a choice of addresses to load from, which would keep all around in memory.
        const uint32_t some = kittens::uniform(whole), end = kittens::uniform(last);
        const kittens::buffer view{base, left > 1 ? some : left == 1 ? end : none};
        --left;
        base += kittens::opaque_scalar(step);
        return view;
    }
};

// The base of the columns that accumulators of a product with KeyTiles hold, in their order (tile_key).
using KeyColumns = kittens::rt_32x16;

// Row r of a tile in LDS is key tile_key(r) of the tile: bits 2 and 3 change places. The accumulator of Q K^T gives a
// lane runs of 4 columns, 8 apart; with its columns in this order they are 8 neighbouring keys, which is what the
// second product wants of a lane (reference: CDNA3 ISA manual 7.1.4, layouts of 32x32 accumulators and operands).
constexpr int tile_key(int row) { return (row & ~12) | (row & 4) << 1 | (row & 8) >> 1; }

template <class T, int keys, int head_dim, int threads>
struct KeyTiles {
    using Tile = kittens::st<T, keys, head_dim, kittens::Access::rows>;
    using Loads = kittens::global_to_shared<Tile, threads, forward_fill>;
    template <int rows, int cols>
    using Piece = kittens::rt<T, rows, cols, kittens::row_l, kittens::rt_32x16>;
    static constexpr int step = 32;
    using Registers = Piece<keys, step>;
    using Reader = kittens::base_tile_reader<T, kittens::row_l, kittens::rt_32x16, Tile>;
    Loads loads;

    // Columns from valid_cols on read as zero.
    KITTENS_DEVICE void init_offsets(int64_t row_bytes, int valid_cols) {
        loads.init_offsets(row_bytes);
        const int thread = kittens::thread_id();
#pragma unroll
        for (int pass = 0; pass < Loads::passes; ++pass) {
            const kittens::Coordinate at = Loads::position(pass, thread);
            const uint32_t moved = (tile_key(at.row) - at.row) * static_cast<uint32_t>(row_bytes);
            loads.offsets[pass] = at.col < valid_cols ? loads.offsets[pass] + moved : kittens::out_of_range;
        }
    }
};

// gfx950 transposes in the LDS read, gfx942 on the way into LDS. Columns beyond head_dim are whatever lies there: they
// stay in their own columns of the output, which are not stored.
template <class T, int keys, int head_dim, int threads,
          bool read_transposed = kittens::target.transposed_lds_read>
struct ValueTiles {
    using Tile = kittens::st<T, keys, head_dim, kittens::Access::columns_32>;
    using Loads = kittens::global_to_shared<Tile, threads, forward_fill>;
    template <int count>
    using Piece =
        kittens::rt<T, count, head_dim, kittens::col_l, kittens::transposed_shape<kittens::rt_32x16>>;
    static constexpr int step = 16;
    using Registers = Piece<step>;
    using Reader =
        kittens::base_tile_reader<T, kittens::col_l, kittens::transposed_shape<kittens::rt_32x16>, Tile>;
    Loads loads;

    // 16 keys from `key` on and 32 columns from `col` on.
    template <int key, int col>
    KITTENS_DEVICE static auto fragment(const Reader& reader) {
        return reader.template read<key, col>();
    }
    template <class Part>
    KITTENS_DEVICE static void read(Part& registers, Tile tile, int key) {
        load(registers, tile, key, 0);
    }
    template <int column, class Part>
    KITTENS_DEVICE static const typename Part::fragment& base_of(const Part& registers) {
        return registers.tiles[0][column];
    }
    template <class Output, class Powers, class Part>
    KITTENS_DEVICE static void multiply(Output& output, const Powers& powers, const Part& registers) {
        mma_AB(output, powers, registers, output);
    }
};
template <class T, int keys, int head_dim, int threads>
struct ValueTiles<T, keys, head_dim, threads, false> {
    using Tile = kittens::st<T, head_dim, keys, kittens::Access::rows_written_in_runs>;
    using Loads = kittens::global_to_shared_transposed<Tile, threads, forward_fill>;
    template <int count>
    using Piece = kittens::rt<T, head_dim, count, kittens::row_l, kittens::rt_32x16>;
    static constexpr int step = 16;
    using Registers = Piece<step>;
    using Reader = kittens::base_tile_reader<T, kittens::row_l, kittens::rt_32x16, Tile>;
    Loads loads;

    template <int key, int col>
    KITTENS_DEVICE static auto fragment(const Reader& reader) {
        return reader.template read<col, key>();
    }
    template <class Part>
    KITTENS_DEVICE static void read(Part& registers, Tile tile, int key) {
        load(registers, tile, 0, key);
    }
    template <int column, class Part>
    KITTENS_DEVICE static const typename Part::fragment& base_of(const Part& registers) {
        return registers.tiles[column][0];
    }
    template <class Output, class Powers, class Part>
    KITTENS_DEVICE static void multiply(Output& output, const Powers& powers, const Part& registers) {
        mma_ABt(output, powers, registers, output);
    }
};

// Rows first .. of one wave alone, from memory to registers: base tiles side by side as operands of the first product. Rows
// beyond the last read zero, or what their stride of zero repeats. `sign`: bits that are flipped in every pair of elements.
template <class Tile, int count>
KITTENS_DEVICE void load_own_rows(Tile (&destination)[count],
                                  const kittens::global_matrix<const typename Tile::element>& source,
                                  int first, uint32_t sign = 0) {
    using T = typename Tile::element;
    const kittens::Coordinate own = kittens::row_layout(Tile::shape::value(), kittens::lane_id(), 0);
    const bool inside = first < source.rows;
    kittens::buffer view = source.window(inside ? first : 0, 0).view();
    if (!inside) view.bytes = 0;
    const uint32_t row = own.row * static_cast<uint32_t>(source.row_bytes());
#pragma unroll
    for (int piece = 0; piece < count; ++piece)
#pragma unroll
        for (int j = 0; j < Tile::width; ++j) {
            const int col = piece * Tile::cols + j * Tile::shape::cols + own.col;
            const kittens::b128 values = kittens::buffer_load<kittens::b128>(
                view, col < source.cols ? row + col * sizeof(T) : kittens::out_of_range);
            destination[piece].tiles[0][j] = __builtin_bit_cast(typename Tile::fragment, values ^ sign);
        }
}

}  // namespace hipkittens::attention
