// tiles/load_global_to_shared_transposed.h: a workgroup fills a shared tile with the transpose of a window of a matrix.
// SPDX-License-Identifier: MIT
#pragma once
#include "load_global_to_shared.h"

namespace kittens {

// Where two rows of the transposed tile fill a bank window, lanes that write rows 8 apart would use the banks of one half of it. Every
// other lane therefore writes the odd column of a pair while its neighbors write the even one.
template <class Transposed>
inline constexpr bool alternates = Transposed::key(1) == 0;

// Like global_to_shared, for a tile that is the transpose of its window: a thread loads 8 columns (4, if there are too
// few blocks for all threads) of 4 rows of the window and writes as many runs of 4. gfx942 reads transposed operands
// this way; gfx950 uses ds_read_b64_tr_b16 instead.
template <class Tile, int Threads, Fill fill, int sets = 1>
struct global_to_shared_transposed {
    using T = typename Tile::element;
    static_assert(is_16bit<T> && fill != Fill::direct, "16-bit elements through registers");
    static constexpr int block_rows = 4;
    static constexpr int block_cols = Tile::bytes / (block_rows * 8 * 2) >= Threads ? 8 : 4;
    using Row = vec<uint32_t, block_cols / 2>;
    static constexpr int row_blocks = Tile::cols / block_rows, col_blocks = Tile::rows / block_cols;
    static constexpr int blocks = row_blocks * col_blocks;
    static constexpr int passes = (blocks + Threads - 1) / Threads;
    static constexpr int loads_per_wave = passes * block_rows, lead = 0;
    static_assert(blocks % wave_lanes == 0, "a tile is filled by whole waves");

    uint32_t offsets[passes];
    uint32_t row_step;
    Row data[sets][passes][block_rows];

    // Sixteen consecutive lanes, one phase of ds_write_b64, cover 8 column blocks and two adjacent row
    // blocks: with the swizzle rows_written_in_runs they use all 32 banks, and memory is read in
    // contiguous pieces of 128 (64) bytes.
    static constexpr int lane_cols = col_blocks < 8 ? col_blocks : 8;
    KITTENS_DEVICE static Coordinate block_of(int index) {
        const int rest = index / (lane_cols * 2);
        return {(rest / (col_blocks / lane_cols) * 2 + index / lane_cols % 2) * block_rows,
                (rest % (col_blocks / lane_cols) * lane_cols + index % lane_cols) * block_cols};
    }
    KITTENS_DEVICE bool active(int pass, int thread) const {
        return (pass + 1) * Threads <= blocks || pass * Threads + thread < blocks;
    }

    KITTENS_DEVICE void init_offsets(int64_t row_bytes, int first_row = 0, int first_col = 0) {
        const int thread = thread_id();
        row_step = static_cast<uint32_t>(row_bytes);
#pragma unroll
        for (int pass = 0; pass < passes; ++pass) {
            const Coordinate block = block_of(pass * Threads + thread);
            offsets[pass] = (first_row + block.row) * row_step + (first_col + block.col) * sizeof(T);
        }
    }
    KITTENS_DEVICE static buffer prepared(buffer source) { return source; }
    template <int set = 0>
    KITTENS_DEVICE void issue_prepared(buffer source, Tile tile) {
        issue<set>(source, tile);
    }
    template <int set = 0>
    KITTENS_DEVICE void issue(buffer source, Tile) {
        issue_where<set>(source, [](int, int) { return true; });
    }
    template <int set = 0>
    KITTENS_DEVICE void issue_valid(buffer source, Tile, int valid_rows, int valid_cols) {
        issue_where<set>(source, [=](int row, int col) { return row < valid_rows && col < valid_cols; });
    }
    template <int set, class Valid>
    KITTENS_DEVICE void issue_where(buffer source, const Valid& valid) {
        const int thread = thread_id();
#pragma unroll
        for (int pass = 0; pass < passes; ++pass)
            if (active(pass, thread)) {
                const Coordinate block = block_of(pass * Threads + thread);
#pragma unroll
                for (int i = 0; i < block_rows; ++i) {
                    const uint32_t offset =
                        valid(block.row + i, block.col) ? offsets[pass] + i * row_step : out_of_range;
                    data[set][pass][i] = load_elements<T, Row, fill>(source, offset);
                }
            }
    }
    template <int set = 0>
    KITTENS_DEVICE void commit(Tile tile) const {
        for_each_index<commit_items>([&](auto piece) { commit_item<piece.value, set>(tile); });
    }

    // A single load, and a single run.
    static constexpr int issue_items = loads_per_wave, commit_items = passes * block_cols;
    template <int piece, int set = 0>
    KITTENS_DEVICE void issue_item(buffer source, Tile) {
        static_assert(fill == Fill::registers);
        constexpr int pass = piece / block_rows, i = piece % block_rows;
        if (active(pass, thread_id()))
            data[set][pass][i] = buffer_load<Row>(source, offsets[pass] + i * row_step);
    }
    template <int piece, int set = 0>
    KITTENS_DEVICE void commit_item(Tile tile) const {
        constexpr int pass = piece / block_cols, j = piece % block_cols;
        const int thread = thread_id();
        if (!active(pass, thread)) return;
        const Coordinate block = block_of(pass * Threads + thread);
        const int odd = alternates<Tile> ? (j ^ block.col / 8) & 1 : j % 2,
                  step = alternates<Tile> ? j & ~1 : j;
        const uint32_t halves = odd ? 0x07060302 : 0x05040100;
        const Row(&rows)[block_rows] = data[set][pass];
        const vec<uint32_t, 2> run = {permute_bytes(rows[1][j / 2], rows[0][j / 2], halves),
                                      permute_bytes(rows[3][j / 2], rows[2][j / 2], halves)};
        lds_write(
            run, tile.data + stepped_offset<Tile>(
                                 Tile::offset(block.col + (alternates<Tile> ? odd : 0), block.row), step, 0));
    }
};

// A thread stores a block of 4 rows of a matrix in LDS twice from one load of it, row-major and transposed: 8 columns from a multiple
// of 8 on, or 2. Row r of the window is row `Order`(r) of the row-major tile; every 4 consecutive rows stay consecutive.
template <class RowMajor, class Transposed, int columns, int (*Order)(int)>
struct block_to_shared_both_ways {
    using T = typename RowMajor::element;
    static constexpr int rows = 4, cols = columns;
    using Row = choose<cols == 8, vec<uint32_t, 4>, uint32_t>;
    static_assert(is_16bit<T> && sizeof(Row) == cols * sizeof(T) && Order(3) == 3);

    uint32_t offsets[rows];
    uint32_t row_major_offset, transposed_offset[2], halves[2];
    Row data[rows];
    vec<uint32_t, 2> runs[cols];
    // Columns from valid_cols on read as zero.
    KITTENS_DEVICE void init_offsets(Coordinate block, int64_t row_bytes, int valid_cols) {
#pragma unroll
        for (int i = 0; i < rows; ++i)
            offsets[i] = block.col < valid_cols
                             ? (block.row + i) * static_cast<uint32_t>(row_bytes) + block.col * sizeof(T)
                             : out_of_range;
        row_major_offset = RowMajor::offset(Order(block.row), block.col);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int odd = alternates<Transposed> ? (i ^ block.col / 8) & 1 : i;
            transposed_offset[i] = Transposed::offset(block.col + odd, block.row);
            halves[i] = odd ? 0x07060302 : 0x05040100;
        }
    }
    template <int row>
    KITTENS_DEVICE void issue(buffer source) {
        data[row] = buffer_load<Row>(source, offsets[row]);
    }
    template <int row>
    KITTENS_DEVICE void commit_row(RowMajor tile) const {
        lds_write(data[row], tile.data + stepped_offset<RowMajor>(row_major_offset, row, 0));
    }
    // Two columns of a row.
    template <int row, int pair>
    KITTENS_DEVICE uint32_t columns_of() const {
        if constexpr (cols == 8)
            return data[row][pair];
        else
            return data[row];
    }
    // Column `col` of the rows, or the other one of its pair; after all columns are transposed, the loaded rows may be overwritten.
    template <int col>
    KITTENS_DEVICE void transpose_column() {
        constexpr int pair = col / 2;
        runs[col] = {permute_bytes(columns_of<1, pair>(), columns_of<0, pair>(), halves[col % 2]),
                     permute_bytes(columns_of<3, pair>(), columns_of<2, pair>(), halves[col % 2])};
        materialize(runs[col]);
    }
    template <int col>
    KITTENS_DEVICE void commit_column(Transposed tile) const {
        lds_write(runs[col], tile.data + stepped_offset<Transposed>(transposed_offset[col % 2], col & ~1, 0));
    }
};

}  // namespace kittens
