// tests/tiles/source_kernels.cpp: tiles of rows that are contiguous, listed or in pages, to the end of a range and one further.
// SPDX-License-Identifier: MIT
#include "registers.h"

using namespace kittens;

// Four waves fill a tile with what `next` gives, `tiles` times, and write each to its place in `out`.
template <class Tile, class Loads, class Next>
KITTENS_DEVICE void copy_tiles(Loads& loads, const Tile tile, int tiles, void* out, const Next& next) {
    using T = typename Tile::element;
    for (int n = 0; n < tiles; ++n) {
        loads.issue(next(), tile);
        if constexpr (vector_fill == Fill::direct)
            wait_vector_memory<0>();
        else
            loads.commit(tile);
        barrier();
        for (int index = thread_id(); index < Tile::rows * Tile::cols; index += 256)
            static_cast<T*>(out)[n * Tile::rows * Tile::cols + index] =
                lds_read<T>(tile.data + Tile::offset(index / Tile::cols, index % Tile::cols));
        barrier();
    }
}
template <class T>
KITTENS_DEVICE global_matrix<const T> matrix(const Arguments& arguments) {
    return {static_cast<const T*>(arguments.a), arguments.stride, arguments.rows, arguments.cols};
}

// Tiles of 64 rows of the matrix, from row `number` on.
template <class T>
KITTENS_DEVICE void rows_of_matrix(const Arguments& arguments, shared_byte* lds) {
    using Tile = st<T, 64, 64, Access::rows>;
    using Loads = global_to_shared<Tile, 256, vector_fill>;
    const auto source = matrix<T>(arguments);
    Loads loads;
    loads.init_offsets(source.row_bytes());
    auto tiles = tiles_of_rows::iterator<64>(source, arguments.number, arguments.rows, 0);
    copy_tiles(loads, Tile{lds}, tiles.left + 1, arguments.out, [&] { return tiles.next(); });
}
// The same through windows that end with the matrix.
template <class T>
KITTENS_DEVICE void windows_of_matrix(const Arguments& arguments, shared_byte* lds) {
    using Tile = st<T, 64, 64, Access::rows>;
    using Loads = global_to_shared<Tile, 256, vector_fill>;
    const auto source = matrix<T>(arguments);
    Loads loads;
    loads.init_offsets(source.row_bytes());
    const int count = (arguments.rows - arguments.number + 63) / 64;
    tile_iterator<tiles_of_window> tiles{{source.window(arguments.number, 0), 64 * source.row_bytes()},
                                         count};
    copy_tiles(loads, Tile{lds}, count + 1, arguments.out, [&] { return tiles.next(); });
}
// Rows b[0 .. rows-1] of the matrix, 64 columns at a time; the lowest of them is `number`.
template <class T>
KITTENS_DEVICE void rows_of_list(const Arguments& arguments, shared_byte* lds) {
    using Tile = st<T, 64, 64, Access::rows>;
    using Loads = global_to_shared<Tile, 256, vector_fill>;
    const auto row_bytes = static_cast<uint32_t>(arguments.stride * sizeof(T));
    Loads loads;
    loads.init_offsets_of(
        listed_rows{static_cast<const int32_t*>(arguments.b), arguments.rows, arguments.number, row_bytes});
    const int count = arguments.cols / 64;
    const char* base =
        static_cast<const char*>(arguments.a) + static_cast<int64_t>(arguments.number) * row_bytes;
    auto tiles =
        tiles_of_buffer::iterator({base, static_cast<uint32_t>(64 * row_bytes)}, 64 * sizeof(T), count);
    copy_tiles(loads, Tile{lds}, count + 1, arguments.out, [&] { return tiles.next(); });
}
// `rows` rows of 128 columns in pages of `number` rows, by the page table b: for tiles of 64, or for the 16 of each wave.
template <class T, int rows_at_once>
KITTENS_DEVICE void rows_of_pages(const Arguments& arguments, shared_byte* lds) {
    using Tile = st<T, 64, 128, Access::rows>;
    using Loads = global_to_shared<Tile, 256, vector_fill>;
    const auto row_bytes = static_cast<uint32_t>(arguments.stride * sizeof(T));
    const int first = rows_at_once == 64 ? 0 : wave_id() * rows_at_once;
    static_assert(rows_at_once == 64 || Loads::passes * Loads::wave_bytes == rows_at_once * Tile::row_bytes);
    Loads loads;
    loads.init_offsets_of([&](int row) { return (row - first) * row_bytes; });
    const int count = (arguments.rows + 63) / 64;
    tile_iterator<tiles_of_pages> tiles{
        {static_cast<const char*>(arguments.a), arguments.number * static_cast<int64_t>(row_bytes),
         static_cast<const int32_t*>(arguments.b), row_bytes,
         static_cast<uint32_t>(arguments.cols * sizeof(T)), arguments.number, first, 64, arguments.rows},
        count};
    copy_tiles(loads, Tile{lds}, count + 1, arguments.out, [&] { return tiles.next(); });
}

#define SOURCE(name, ...)                                              \
    TEST_KERNEL(name, 256) {                                           \
        __attribute__((shared, aligned(1024))) static char lds[16384]; \
        __VA_ARGS__(arguments, (shared_byte*)lds);                     \
    }
SOURCE(contiguous, rows_of_matrix<half>)
SOURCE(windows, windows_of_matrix<half>)
SOURCE(list, rows_of_list<half>)
SOURCE(pages_of_tiles, rows_of_pages<half, 64>)
SOURCE(pages_of_waves, rows_of_pages<half, 16>)
