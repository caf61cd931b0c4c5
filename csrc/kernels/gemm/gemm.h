// kernels/gemm/gemm.h: C = A B for every element type, orientation, tile and target.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "arguments.h"
#include "config.h"
#include "epilogue.h"

namespace hipkittens::gemm {

template <Input input>
struct element_of {
    using type = kittens::bf16;
};
template <>
struct element_of<Input::f16> {
    using type = kittens::half;
};

// How one operand travels. `k_is_contiguous`: its rows run along K. `extent`: rows of the product it covers.
template <class T, int extent, int tile_k, int threads, bool k_is_contiguous, RowStart row_start>
struct Operand {
    static constexpr kittens::Fill fill = row_start == RowStart::element            ? kittens::Fill::elements
                                          : kittens::target.direct_to_lds_bytes == 16 ? kittens::Fill::direct
                                                                                      : kittens::Fill::registers;
    // Transposed in the LDS read where the target can, else on the way into LDS.
    static constexpr bool read_transposed = !k_is_contiguous && kittens::target.transposed_lds_read;
    static constexpr bool filled_transposed = !k_is_contiguous && !read_transposed;

    template <bool transposed, int dummy = 0>
    struct types {
        using tile = kittens::st<T, extent, tile_k,
                                 filled_transposed ? kittens::Access::rows_written_in_runs : kittens::Access::rows>;
        template <int rows>
        using registers = kittens::rt<T, rows, 32, kittens::row_l, kittens::rt_16x32>;
    };
    template <int dummy>
    struct types<true, dummy> {
        using tile = kittens::st<T, tile_k, extent, kittens::Access::columns_16>;
        template <int rows>
        using registers = kittens::rt<T, 32, rows, kittens::col_l, kittens::rt_32x16>;
    };
    using Tile = typename types<read_transposed>::tile;
    template <int rows>
    using Registers = typename types<read_transposed>::template registers<rows>;

    template <bool transposed, int dummy = 0>
    struct loader {
        using type = kittens::global_to_shared<Tile, threads, fill>;
    };
    template <int dummy>
    struct loader<true, dummy> {
        using type = kittens::global_to_shared_transposed<Tile, threads, fill>;
    };

    kittens::global_matrix<const T> matrix;
    int origin;  // first row of the product
    typename loader<filled_transposed>::type fill_tile;

    KITTENS_DEVICE Operand(MatrixArgument argument, int64_t batch, int rows, int k, int origin) : origin(origin) {
        matrix = {static_cast<const T*>(argument.data) + batch * argument.batch_stride, argument.leading_stride,
                  k_is_contiguous ? rows : k, k_is_contiguous ? k : rows};
    }
    KITTENS_DEVICE kittens::global_window window(int64_t k) const {
        return k_is_contiguous ? matrix.window(origin, k) : matrix.window(k, origin);
    }
    KITTENS_DEVICE int64_t step_bytes() const {
        return k_is_contiguous ? static_cast<int64_t>(tile_k * sizeof(T)) : tile_k * matrix.row_bytes();
    }
    KITTENS_DEVICE void aim(int valid_k) {
        // Rows of the product beyond the matrix need no mask: what they read never leaves the accumulator's own row.
        if constexpr (k_is_contiguous)
            fill_tile.aim(matrix.row_bytes(), extent, valid_k);
        else
            fill_tile.aim(matrix.row_bytes(), valid_k, extent);
    }
    // Elements past K in the chunk that K cuts: only rows that run along K are cut inside a chunk.
    KITTENS_DEVICE void clear_past(Tile tile, int valid_k) const {
        if constexpr (k_is_contiguous) kittens::zero_columns<threads>(tile, valid_k);
    }
    template <int rows>
    KITTENS_DEVICE static void read(Registers<rows>& registers, Tile tile, int row, int k) {
        if constexpr (read_transposed)
            load(registers, tile, k, row);
        else
            load(registers, tile, row, k);
    }
};

template <GemmConfig config>
struct Gemm {
    using T = typename element_of<config.input>::type;
    static constexpr int threads = config.threads();
    using A = Operand<T, config.tile_m, config.tile_k, threads, !config.a_is_transposed(), config.row_start>;
    using B = Operand<T, config.tile_n, config.tile_k, threads, config.b_is_transposed(), config.row_start>;
    static constexpr bool direct = A::fill == kittens::Fill::direct;
    static constexpr int buffers = direct ? 2 : 1;
    static constexpr int lds_bytes = buffers * (A::Tile::bytes + B::Tile::bytes);
    static constexpr int step_k = 32;
    static_assert(lds_bytes <= kittens::target.lds_bytes, "the K tiles in flight fit in LDS");
    static_assert(config.tile_k % step_k == 0 && config.wave_m() % 16 == 0 && config.wave_n() % 16 == 0,
                  "waves own whole base tiles");

    using Accumulator = kittens::rt<float, config.wave_m(), config.wave_n(), kittens::row_l, kittens::rt_16x16>;

    KITTENS_DEVICE static void multiply(Accumulator& sum, typename A::Tile a_tile, int row, typename B::Tile b_tile,
                                        int col) {
#pragma unroll
        for (int k = 0; k < config.tile_k; k += step_k) {
            typename A::template Registers<config.wave_m()> a;
            typename B::template Registers<config.wave_n()> b;
            A::template read<config.wave_m()>(a, a_tile, row, k);
            B::template read<config.wave_n()>(b, b_tile, col, k);
            if constexpr (A::read_transposed && B::read_transposed)
                mma_AtB(sum, a, b, sum);
            else if constexpr (A::read_transposed)
                mma_AtBt(sum, a, b, sum);
            else if constexpr (B::read_transposed)
                mma_AB(sum, a, b, sum);
            else
                mma_ABt(sum, a, b, sum);
        }
    }

    KITTENS_DEVICE static void run(const GemmArguments& arguments, kittens::shared_byte* lds) {
        const TilePosition tile = tile_of_workgroup(kittens::workgroup_id_x(), arguments.order);
        const int split = kittens::workgroup_id_y();
        const int64_t batch = kittens::workgroup_id_z();
        const int m0 = tile.m * config.tile_m, n0 = tile.n * config.tile_n;
        const int wave = kittens::wave_id();
        const int row = wave / config.waves_n * config.wave_m(), col = wave % config.waves_n * config.wave_n();
        A a(arguments.a, batch, arguments.m, arguments.k, m0);
        B b(arguments.b, batch, arguments.n, arguments.k, n0);
        const int begin = split * arguments.k_tiles_per_split;
        const int past = begin + arguments.k_tiles_per_split;
        const int last = (past < arguments.k_tiles ? past : arguments.k_tiles) - 1;

        auto a_tile = [&](int buffer) { return typename A::Tile{lds + buffer * A::Tile::bytes}; };
        auto b_tile = [&](int buffer) {
            return typename B::Tile{lds + buffers * A::Tile::bytes + buffer * B::Tile::bytes};
        };

        // The last K tile, which K may cut, goes first: masks and clearing stay out of the loop, and every other tile
        // begins on a multiple of tile_k.
        const int valid_k = arguments.k - last * config.tile_k;
        a.aim(valid_k);
        b.aim(valid_k);
        fill(a, b, a.window(static_cast<int64_t>(last) * config.tile_k), b.window(static_cast<int64_t>(last) * config.tile_k),
             a_tile(0), b_tile(0));
        settle(a, b, a_tile(0), b_tile(0));
        if (valid_k < config.tile_k && valid_k % 8 != 0) {
            a.clear_past(a_tile(0), valid_k);
            b.clear_past(b_tile(0), valid_k);
            kittens::barrier();
        }
        a.aim(config.tile_k);
        b.aim(config.tile_k);

        Accumulator sum;
        zero(sum);
        kittens::global_window a_window = a.window(static_cast<int64_t>(begin) * config.tile_k);
        kittens::global_window b_window = b.window(static_cast<int64_t>(begin) * config.tile_k);
        const int64_t a_step = a.step_bytes(), b_step = b.step_bytes();
        int buffer = 0;
        for (int k_tile = begin; k_tile < last; ++k_tile) {
            const int next = direct ? buffer ^ 1 : 0;
            fill(a, b, a_window, b_window, a_tile(next), b_tile(next));
            a_window.advance(a_step);
            b_window.advance(b_step);
            multiply(sum, a_tile(buffer), row, b_tile(buffer), col);
            if constexpr (!direct) kittens::barrier();
            settle(a, b, a_tile(next), b_tile(next));
            buffer = next;
        }
        multiply(sum, a_tile(buffer), row, b_tile(buffer), col);

        store_product(sum, arguments, batch, split, m0, n0, row, col);
    }

   private:
    KITTENS_DEVICE static void fill(A& a, B& b, kittens::global_window a_window, kittens::global_window b_window,
                                    typename A::Tile a_tile, typename B::Tile b_tile) {
        a.fill_tile.fetch(a_window, a_tile);
        b.fill_tile.fetch(b_window, b_tile);
    }
    // After it every wave may read the tiles that fill() began.
    KITTENS_DEVICE static void settle(A& a, B& b, typename A::Tile a_tile, typename B::Tile b_tile) {
        if constexpr (direct) {
            kittens::wait_vector_memory<0>();
        } else {
            a.fill_tile.place(a_tile);
            b.fill_tile.place(b_tile);
        }
        kittens::barrier();
    }
};

}  // namespace hipkittens::gemm
