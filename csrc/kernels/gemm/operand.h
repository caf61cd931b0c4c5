// kernels/gemm/operand.h: how a tile of A or B gets from memory through LDS to registers, depending on its element type.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "../element_of.h"
#include "arguments.h"
#include "config.h"
#include "dword_fragments.h"

namespace hipkittens::gemm {

using namespace kittens;

// A workgroup's share of K, in tiles. Its last tile, the only one that may be partial, is processed first:
// this keeps masking and clearing out of the loop, and every other tile begins on a multiple of tile_k.
struct KRange {
    int begin, last;  // tiles begin .. last, in the order last, begin, begin + 1, ..., last - 1
    int valid_k;      // of tile last

    KITTENS_DEVICE KRange(const GemmArguments& arguments, int split, int tile_k) {
        begin = split * arguments.k_tiles_per_split;
        const int past = begin + arguments.k_tiles_per_split;
        last = (past < arguments.k_tiles ? past : arguments.k_tiles) - 1;
        const int left = arguments.k - last * tile_k;
        valid_k = left < tile_k ? left : tile_k;
    }
    KITTENS_DEVICE int count() const { return last - begin + 1; }
};

// An operand in memory: its rows run along K or along the product's own dimension. tile_k counts T, each of which may hold several values.
template <class T, bool k_is_contiguous, int tile_k>
struct OperandSource {
    global_matrix<const T> matrix;
    int origin;  // the workgroup's first row (of A) or column (of B) of the product

    KITTENS_DEVICE OperandSource(MatrixArgument argument, int64_t batch, int extent, int k, int origin)
        : origin(origin) {
        matrix = {static_cast<const T*>(argument.data) + batch * argument.batch_stride,
                  argument.leading_stride, k_is_contiguous ? extent : k,
                  k_is_contiguous ? stored<T>(k) : extent};
    }
    KITTENS_DEVICE global_window window(int k_tile) const {
        const int64_t k = static_cast<int64_t>(k_tile) * tile_k;
        return k_is_contiguous ? matrix.window(origin, k) : matrix.window(k, origin);
    }
    KITTENS_DEVICE int64_t step_bytes() const {
        return k_is_contiguous ? static_cast<int64_t>(tile_k * sizeof(T)) : tile_k * matrix.row_bytes();
    }
};

// 6-bit values in the layout of rows_of_6_bits: the stride between tiles along K is the size of 128 values of all rows.
template <class T, int extent>
struct SixBitSource {
    const char* data;
    uint32_t rows, blocks;
    int origin;

    KITTENS_DEVICE SixBitSource(MatrixArgument argument, int64_t, int rows, int k, int origin)
        : data(static_cast<const char*>(argument.data)),
          rows(rows),
          blocks((k + 127) / 128),
          origin(origin) {}
    KITTENS_DEVICE int64_t step_bytes() const { return static_cast<int64_t>(rows) * rows_of_6_bits::both; }
    KITTENS_DEVICE global_window window(int k_tile) const {
        return {data + k_tile * step_bytes(), (blocks - k_tile) * step_bytes()};
    }
    KITTENS_DEVICE rows_of_6_bits rows_of_piece(int piece) const {
        return {rows, static_cast<uint32_t>(origin + piece * extent)};
    }
};

// `extent` rows (columns) of the product by tile_k elements: a lane owns 16 bytes along K of each base tile, which is one LDS read, or
// more where the matrix instruction takes more; the product is split into as many instructions as needed (multiply_base). Where B is
// converted, a lane's 32 consecutive elements along K match several steps of A.
template <class T, int extent, bool k_is_contiguous, GemmConfig config>
struct Operand {
    static constexpr bool along_k = k_is_contiguous;
    static constexpr int rows = extent, tile_k = stored<T>(config.tile_k),
                         threads = config.schedule == Schedule::streamed ? wave_lanes : config.threads(),
                         vector_elements = b128_bytes / sizeof(T);
    static constexpr Fill fill = config.row_start == RowStart::element   ? Fill::elements
                                 : config.schedule == Schedule::streamed ? Fill::registers
                                                                         : vector_fill;
    // Transposed in the LDS read where the target supports it, otherwise on the way into LDS.
    static constexpr bool read_transposed = !k_is_contiguous && target.transposed_lds_read,
                          filled_transposed = !k_is_contiguous && !read_transposed;
    static_assert(k_is_contiguous || is_16bit<T>, "transposition moves 16-bit elements");

    // Where the loop carries fragments, and the registers leave no room for taking them apart.
    static constexpr bool read_as_dwords =
        is_float8<T> && config.scales == Scales::in_matrix && config.schedule == Schedule::ping_pong;

    static_assert(!is_float6<T> || config.tile_k == 128,
                  "a tile of codes of 6 bits is what is behind each other");
    using Source = choose<is_float6<T>, SixBitSource<T, extent>, OperandSource<T, k_is_contiguous, tile_k>>;
    static constexpr bool meets_converted = config.converts_b() && is_16bit<T>;
    static constexpr int reads = meets_converted                               ? 4  // per base tile
                                 : is_float8<T> && target.matrix_k_8bit == 128 ? 2
                                                                               : 1;
    using base = choose<is_float6<T>, base_shape<16, stored<T>(128), stored<T>(128) / 4>,
                        base_shape<config.matrix, reads * wave_lanes * vector_elements / config.matrix,
                                   meets_converted ? reads * vector_elements : vector_elements>>;
    static constexpr int step_k = is_float6<T> ? 128 : is_float4<T> ? base::cols * 2 : base::cols;
    static constexpr Access access = filled_transposed     ? Access::rows_written_in_runs
                                     : meets_converted     ? Access::rows_in_runs_of_4
                                     : !read_transposed    ? Access::rows
                                     : config.matrix == 16 ? Access::columns_16
                                                           : Access::columns_32;
    template <class Element>
    struct tile_of {
        using type =
            choose<read_transposed, st<Element, tile_k, extent, access>, st<Element, extent, tile_k, access>>;
    };
    template <class Element>
        requires is_float6<Element>
    struct tile_of<Element> {
        using type = st_6_bits<Element, extent, config.tile_k, threads * b128_bytes>;
    };
    using Tile = typename tile_of<T>::type;
    template <int rows, int k>
    using Registers = choose<read_transposed, rt<T, k, rows, col_l, transposed_shape<base>>,
                             rt<T, rows, stored<T>(k), row_l, base>>;
    using Loads =
        choose<filled_transposed, global_to_shared_transposed<Tile, threads, fill, config.in_registers>,
               global_to_shared<Tile, threads, fill, config.in_registers>>;

    // Only K is ever masked: what rows past the end of the matrix read stays in their own row of the accumulator.
    KITTENS_DEVICE static int valid_rows(int valid_k) { return k_is_contiguous ? extent : valid_k; }
    KITTENS_DEVICE static int valid_cols(int valid_k) {
        return k_is_contiguous ? stored<T>(valid_k) : extent;
    }

    // K ends inside 16 bytes, which are loaded whole: this happens only in rows that run along K.
    KITTENS_DEVICE static bool is_cut(int valid_k) { return stored<T>(valid_k) % vector_elements != 0; }
    KITTENS_DEVICE static void clear_past(Tile tile, int valid_k) {
        if constexpr (k_is_contiguous && !is_float6<T>) zero_columns<threads>(tile, stored<T>(valid_k));
    }
    template <class Part, class Register>
    KITTENS_DEVICE static void read(Register& registers, Tile tile, int row, int k) {
        if constexpr (read_transposed)
            load_part<transposed_base_tiles<Part>>(registers, tile, k, row);
        else if constexpr (read_as_dwords)
            load_dwords<Part>(registers, tile, row, k);
        else
            load_part<Part>(registers, tile, row, stored<T>(k));
    }
    template <int row, int k, class Register>
    KITTENS_DEVICE static const typename Register::fragment& fragment(const Register& registers) {
        if constexpr (read_transposed)
            return registers.tiles[k][row];
        else
            return registers.tiles[row][k];
    }
};

}  // namespace hipkittens::gemm
