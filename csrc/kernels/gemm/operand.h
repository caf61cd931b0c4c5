// kernels/gemm/operand.h: how a piece of A or B travels from memory through LDS to registers.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "../element_of.h"
#include "arguments.h"
#include "config.h"

namespace hipkittens::gemm {

// An operand in memory: its rows run along K or along the product's own dimension.
template <class T, bool k_is_contiguous, int tile_k>
struct OperandSource {
    kittens::global_matrix<const T> matrix;
    int origin;  // the workgroup's first row (of A) or column (of B) of the product

    KITTENS_DEVICE OperandSource(MatrixArgument argument, int64_t batch, int extent, int k, int origin)
        : origin(origin) {
        matrix = {static_cast<const T*>(argument.data) + batch * argument.batch_stride,
                  argument.leading_stride, k_is_contiguous ? extent : k, k_is_contiguous ? k : extent};
    }
    KITTENS_DEVICE kittens::global_window window(int k_tile) const {
        const int64_t k = static_cast<int64_t>(k_tile) * tile_k;
        return k_is_contiguous ? matrix.window(origin, k) : matrix.window(k, origin);
    }
    KITTENS_DEVICE int64_t step_bytes() const {
        return k_is_contiguous ? static_cast<int64_t>(tile_k * sizeof(T)) : tile_k * matrix.row_bytes();
    }
};

// A piece of `extent` rows (columns) of the product by tile_k in LDS.
template <class T, int extent, int tile_k, int threads, int matrix, bool k_is_contiguous, RowStart row_start,
          int sets>
struct OperandPiece {
    static constexpr kittens::Fill fill =
        row_start == RowStart::element ? kittens::Fill::elements : kittens::vector_fill;
    // Transposed in the LDS read where the target can, else on the way into LDS.
    static constexpr bool read_transposed = !k_is_contiguous && kittens::target.transposed_lds_read;
    static constexpr bool filled_transposed = !k_is_contiguous && !read_transposed;

    using base = kittens::base_shape<matrix, 512 / matrix, 8>;  // 16x32 or 32x16
    template <bool transposed, int dummy = 0>
    struct types {
        using tile =
            kittens::st<T, extent, tile_k,
                        filled_transposed ? kittens::Access::rows_written_in_runs : kittens::Access::rows>;
        template <int rows, int k>
        using registers = kittens::rt<T, rows, k, kittens::row_l, base>;
    };
    template <int dummy>
    struct types<true, dummy> {
        using tile = kittens::st<T, tile_k, extent,
                                 matrix == 16 ? kittens::Access::columns_16 : kittens::Access::columns_32>;
        template <int rows, int k>
        using registers = kittens::rt<T, k, rows, kittens::col_l, kittens::transposed_shape<base>>;
    };
    using Tile = typename types<read_transposed>::tile;
    template <int rows, int k>
    using Registers = typename types<read_transposed>::template registers<rows, k>;

    template <bool transposed, int dummy = 0>
    struct loader {
        using type = kittens::global_to_shared<Tile, threads, fill, sets>;
    };
    template <int dummy>
    struct loader<true, dummy> {
        using type = kittens::global_to_shared_transposed<Tile, threads, fill, sets>;
    };
    using Loads = typename loader<filled_transposed>::type;
    static constexpr int loads_per_wave = Loads::loads_per_wave;
    Loads loads;

    // `first`: where the piece begins in the workgroup's extent. Only K is ever masked: what rows of the
    // product beyond the matrix read never leaves their own row of the accumulator.
    KITTENS_DEVICE void init_offsets(const OperandSource<T, k_is_contiguous, tile_k>& source, int first) {
        loads.init_offsets(source.matrix.row_bytes(), k_is_contiguous ? first : 0,
                           k_is_contiguous ? 0 : first);
    }
    template <int set = 0>
    KITTENS_DEVICE void issue_valid(kittens::buffer source, Tile tile, int valid_k) {
        loads.template issue_valid<set>(source, tile, k_is_contiguous ? extent : valid_k,
                                        k_is_contiguous ? valid_k : extent);
    }
    KITTENS_DEVICE void mask(uint32_t (&masked)[Loads::passes], int valid_k) const {
        loads.mask(masked, k_is_contiguous ? extent : valid_k, k_is_contiguous ? valid_k : extent);
    }
    // Elements past K in the chunk that K cuts: only rows that run along K are cut inside a chunk.
    KITTENS_DEVICE static void clear_past(Tile tile, int valid_k) {
        if constexpr (k_is_contiguous) kittens::zero_columns<threads>(tile, valid_k);
    }
    template <int rows, int k>
    KITTENS_DEVICE static void read(Registers<rows, k>& registers, Tile tile, int row, int k_begin) {
        if constexpr (read_transposed)
            load(registers, tile, k_begin, row);
        else
            load(registers, tile, row, k_begin);
    }
    // Base tile `index` of registers that are one base tile wide along K.
    template <int index, int rows, int k>
    KITTENS_DEVICE static void read_base(Registers<rows, k>& registers, Tile tile, int row, int k_begin) {
        static_assert(k == base::cols, "one base tile along K");
        if constexpr (read_transposed)
            kittens::load_part<kittens::base_tiles<0, 1, index, index + 1>>(registers, tile, k_begin, row);
        else
            kittens::load_part<kittens::base_tiles<index, index + 1, 0, 1>>(registers, tile, row, k_begin);
    }
    template <int index, class Register>
    KITTENS_DEVICE static const typename Register::fragment& base_of(const Register& registers) {
        return read_transposed ? registers.tiles[0][index % Register::width]
                               : registers.tiles[index % Register::height][0];
    }
};

// Both operands as a loop moves them: so many rows and columns of the workgroup's tile at a time, and all of a K tile.
template <GemmConfig config, int rows = config.tile_m, int columns = config.tile_n>
struct LoopOperands {
    using T = typename element_of<config.input>::value;
    static constexpr bool a_runs_along_k = !config.a_is_transposed(),
                          b_runs_along_k = config.b_is_transposed();
    using SourceA = OperandSource<T, a_runs_along_k, config.tile_k>;
    using SourceB = OperandSource<T, b_runs_along_k, config.tile_k>;
    using A = OperandPiece<T, rows, config.tile_k, config.threads(), config.matrix, a_runs_along_k,
                           config.row_start, config.in_registers>;
    using B = OperandPiece<T, columns, config.tile_k, config.threads(), config.matrix, b_runs_along_k,
                           config.row_start, config.in_registers>;
    using TileA = typename A::Tile;
    using TileB = typename B::Tile;
};

// The verb that fits how the operands lie in registers.
template <class A, class B, class Products = kittens::all_products, class D, class RegistersA,
          class RegistersB>
KITTENS_DEVICE void multiply(D& sum, const RegistersA& a, const RegistersB& b) {
    if constexpr (A::read_transposed && B::read_transposed)
        kittens::mma_AtB<Products>(sum, a, b, sum);
    else if constexpr (A::read_transposed)
        kittens::mma_AtBt<Products>(sum, a, b, sum);
    else if constexpr (B::read_transposed)
        kittens::mma_AB<Products>(sum, a, b, sum);
    else
        kittens::mma_ABt<Products>(sum, a, b, sum);
}

// A workgroup's share of K, in tiles. Its last tile, which K may cut, is taken first: masks and clearing stay
// out of the loop, and every other tile begins on a multiple of tile_k.
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
    KITTENS_DEVICE bool cuts_a_chunk() const { return valid_k % 8 != 0; }
};

// The tiles not yet begun to load, after the first of the range. One buffer for all of K: only its scalar offset moves.
template <class A, class B>
struct RunningViews {
    kittens::buffer a, b;
    uint32_t a_step, b_step;
    int left;

    template <class SourceA, class SourceB>
    KITTENS_DEVICE RunningViews(const SourceA& source_a, const SourceB& source_b, KRange range)
        : a(A::Loads::prepared(source_a.window(range.begin).view())),
          b(B::Loads::prepared(source_b.window(range.begin).view())),
          a_step(source_a.step_bytes()),
          b_step(source_b.step_bytes()),
          left(range.count() - 1) {
        if (left == 0) close();
    }
    // Past the last tile both buffers are empty: their loads touch no memory but count like any other, so the
    // waits stay the same to the end.
    KITTENS_DEVICE void close() {
        a.bytes = b.bytes = a.scalar_offset = b.scalar_offset = a_step = b_step = 0;
    }
    // `steady`: at least one more tile is left after this one.
    template <bool steady>
    KITTENS_DEVICE void advance() {
        a.scalar_offset += a_step;
        b.scalar_offset += b_step;
        if constexpr (!steady)
            if (left == 1) close();
        --left;
    }
};

}  // namespace hipkittens::gemm
