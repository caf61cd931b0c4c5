// tests/tiles/move_kernels.cpp: every movement between memory, LDS and registers.
// SPDX-License-Identifier: MIT
#include "registers.h"

using namespace kittens;

template <class T>
KITTENS_DEVICE global_matrix<const T> matrix(const void* data, const Arguments& arguments) {
    return {static_cast<const T*>(data), arguments.stride, arguments.rows, arguments.cols};
}

// Register tiles from and to a matrix of rows x cols with any stride; the tile begins at (number, number).
template <class Tile>
KITTENS_DEVICE void load_global(const Arguments& arguments) {
    using T = typename Tile::element;
    const auto source = matrix<T>(arguments.a, arguments);
    Tile tile;
    load(tile, source.window(arguments.number, arguments.number), source.row_bytes(),
         arguments.cols - arguments.number);
    give(arguments.out, tile);
}
template <class Tile>
KITTENS_DEVICE void store_global(const Arguments& arguments) {
    using T = typename Tile::element;
    const auto destination = matrix<T>(arguments.out, arguments);
    Tile tile;
    take(tile, arguments.a);
    store(destination.window(arguments.number, arguments.number), destination.row_bytes(), tile,
          arguments.cols - arguments.number);
}
#define GLOBAL_REGISTER(T, Layout, Shape)                                                                    \
    TEST_KERNEL(load_##T##_##Layout##_##Shape, 64) { load_global<rt<T, 32, 64, Layout, Shape>>(arguments); } \
    TEST_KERNEL(store_##T##_##Layout##_##Shape, 64) { store_global<rt<T, 32, 64, Layout, Shape>>(arguments); }
GLOBAL_REGISTER(float, row_l, rt_16x16)
GLOBAL_REGISTER(float, col_l, rt_32x32)
GLOBAL_REGISTER(bf16, row_l, rt_16x32)
GLOBAL_REGISTER(bf16, col_l, rt_16x16)
GLOBAL_REGISTER(half, row_l, rt_32x16)
GLOBAL_REGISTER(half, col_l, rt_32x16)

// Four waves fill a 64x64 tile from a matrix of rows x cols at (0, 0), of which only these are valid, and
// every wave reads it back through one kind of access. What the 16x64 quarter of wave w gives lies at quarter
// w.
template <class Tile, class Loader, class Register, bool by_columns, bool stored_transposed>
KITTENS_DEVICE void through_shared(const Arguments& arguments, shared_byte* lds) {
    using T = typename Tile::element;
    const auto source = matrix<T>(arguments.a, arguments);
    const Tile tile{lds};
    Loader loader;
    loader.init_offsets(source.row_bytes(), 0, 0);
    loader.issue_valid(source.window(0, 0).view(), tile, arguments.rows, arguments.cols);
    if constexpr (requires { Loader::is_direct; }) {
        wait_vector_memory<0>();
    } else {
        loader.commit(tile);
    }
    barrier();
    if (!stored_transposed && arguments.cols * sizeof(T) % b128_bytes != 0) {
        zero_columns<256>(tile, arguments.cols);
        barrier();
    }
    Register registers;
    const int wave = wave_id();
    if constexpr (by_columns)
        load(registers, tile, 0, wave * Register::cols % 64);
    else
        load(registers, tile, wave * Register::rows % 64, 0);
    give(static_cast<T*>(arguments.out) + wave * Register::rows * Register::cols, registers);
}
// threads, name, element, tile's swizzle, loader, register tile
#define SHARED(name, Tile, Loader, Register, by_columns, transposed)                                  \
    TEST_KERNEL(name, 256) {                                                                          \
        __attribute__((shared, aligned(1024))) static char lds[Tile::bytes];                          \
        through_shared<Tile, Loader, Register, by_columns, transposed>(arguments, (shared_byte*)lds); \
    }
template <class Tile>
struct direct_loader : global_to_shared<Tile, 256, Fill::direct> {
    static constexpr bool is_direct = true;
};
template <class Tile>
using register_loader = global_to_shared<Tile, 256, Fill::registers>;
template <class Tile>
using element_loader = global_to_shared<Tile, 256, Fill::elements>;
template <class Tile, Fill fill>
using transposing_loader = global_to_shared_transposed<Tile, 256, fill>;

template <class T>
using rows_tile = st<T, 64, 64, Access::rows>;
template <class T>
using runs_tile = st<T, 64, 64, Access::rows_written_in_runs>;
template <class T>
using linear_tile = st<T, 64, 64, Access::linear>;
template <class T>
using columns_16_tile = st<T, 64, 64, Access::columns_16>;
template <class T>
using columns_32_tile = st<T, 64, 64, Access::columns_32>;
template <class T, class Shape>
using row_registers = rt<T, Shape::rows, 64, row_l, Shape>;
template <class T, class Shape>
using col_registers = rt<T, 64, Shape::cols, col_l, Shape>;

#define BOTH_LOADERS(name, T, Tile, Register, by_columns)                                    \
    SHARED(name##_registers, Tile<T>, register_loader<Tile<T>>, Register, by_columns, false) \
    SHARED(name##_elements, Tile<T>, element_loader<Tile<T>>, Register, by_columns, false)
#define PLAIN(T)                                                                                            \
    using T##_row_16x32 = row_registers<T, rt_16x32>;                                                       \
    using T##_row_32x16 = row_registers<T, rt_32x16>;                                                       \
    using T##_row_16x16 = row_registers<T, rt_16x16>;                                                       \
    using T##_col_32x16 = col_registers<T, rt_32x16>;                                                       \
    using T##_col_16x32 = col_registers<T, rt_16x32>;                                                       \
    BOTH_LOADERS(T##_rows_16x32, T, rows_tile, T##_row_16x32, false)                                        \
    BOTH_LOADERS(T##_rows_32x16, T, rows_tile, T##_row_32x16, false)                                        \
    BOTH_LOADERS(T##_linear_16x16, T, linear_tile, T##_row_16x16, false)                                    \
    using T##_vector_transposer = transposing_loader<runs_tile<T>, Fill::registers>;                        \
    using T##_element_transposer = transposing_loader<runs_tile<T>, Fill::elements>;                        \
    SHARED(T##_transposed_16x32_registers, runs_tile<T>, T##_vector_transposer, T##_row_16x32, false, true) \
    SHARED(T##_transposed_32x16_elements, runs_tile<T>, T##_element_transposer, T##_row_32x16, false, true)
PLAIN(bf16)
PLAIN(half)
using float_row_16x4 = row_registers<float, rt_16x4>;
using float_row_32x32 = row_registers<float, rt_32x32>;
BOTH_LOADERS(float_linear_16x4, float, linear_tile, float_row_16x4, false)
BOTH_LOADERS(float_linear_32x32, float, linear_tile, float_row_32x32, false)
// Column reads: swizzled for gfx950's transposed read; gfx942 gathers from any tile.
#define COLUMNS(T)                                                           \
    BOTH_LOADERS(T##_columns_32x16, T, columns_16_tile, T##_col_32x16, true) \
    BOTH_LOADERS(T##_columns_16x32, T, columns_32_tile, T##_col_16x32, true)
COLUMNS(bf16)
COLUMNS(half)
#if defined(__gfx950__)
#define DIRECT(T)                                                                                          \
    SHARED(T##_rows_16x32_direct, rows_tile<T>, direct_loader<rows_tile<T>>, T##_row_16x32, false, false)  \
    SHARED(T##_columns_32x16_direct, columns_16_tile<T>, direct_loader<columns_16_tile<T>>, T##_col_32x16, \
           true, false)
DIRECT(bf16)
DIRECT(half)
#endif
