// tiles/load_global_to_shared.h: a workgroup fills a shared tile from a window of a matrix.
// SPDX-License-Identifier: MIT
#pragma once
#include "global_layout.h"
#include "lane_layout.h"
#include "shared_tile.h"
#include "tile_source.h"
#include "unroll.h"

namespace kittens {

enum class Fill {
    direct,     // memory to LDS, no registers (gfx950)
    registers,  // 16-byte loads, 16-byte LDS writes
    elements,   // one load per element, for rows that do not begin on 4 bytes
};

// Where rows begin on 4 bytes and hold whole dwords.
inline constexpr Fill vector_fill = target.direct_to_lds_bytes == 16 ? Fill::direct : Fill::registers;

template <class T, class V, Fill fill>
KITTENS_DEVICE V load_elements(buffer source, uint32_t offset) {
    if constexpr (fill == Fill::elements) {
        constexpr int count = sizeof(V) / sizeof(T);
        vec<T, count> elements;
#pragma unroll
        for (int i = 0; i < count; ++i) elements[i] = buffer_load<T>(source, offset + i * sizeof(T));
        return __builtin_bit_cast(V, elements);
    } else {
        return buffer_load<V>(source, offset);
    }
}

// Offsets are computed once (aim) and used for every window of the same row stride. Lanes write LDS in linear
// order, as the direct load must; the swizzle is therefore applied, inverted, to the global side. The passes
// of a wave lie side by side. fetch() starts the loads: into LDS (direct) or into registers, which place()
// writes to LDS. `sets`: how many fills can be under way in registers, each in the set that its fetch and place name.
template <class Tile, int Threads, Fill fill, int sets = 1>
struct global_to_shared {
    using T = typename Tile::element;
    static constexpr int pass_bytes = Threads * b128_bytes;
    static constexpr int passes = (Tile::bytes + pass_bytes - 1) / pass_bytes;
    static constexpr int loads_per_wave = passes;  // what one fill adds to vmcnt
    static_assert(Tile::bytes % (wave_lanes * b128_bytes) == 0, "a tile is filled by whole waves");
    static_assert(fill != Fill::direct || Tile::bytes % pass_bytes == 0,
                  "every wave issues the same number of direct loads, or their waits differ");

    int wave;
    uint32_t offsets[passes];
    b128 data[sets][fill == Fill::direct ? 1 : passes];

    KITTENS_DEVICE bool active(int pass, int thread) const {
        return passes * pass_bytes <= Tile::bytes || linear_offset(pass, thread) < Tile::bytes;
    }

    // Up to four direct loads share one m0 and tell their 1024-byte blocks apart by the offset field. The
    // field also moves the address in memory, so the buffer begins `lead` bytes early and lanes make up for
    // it.
    static constexpr int wave_bytes = wave_lanes * b128_bytes;
    static constexpr int lead = fill == Fill::direct ? (passes < 4 ? passes - 1 : 3) * wave_bytes : 0;

    KITTENS_DEVICE static buffer prepared(buffer source) {
        return {source.base - lead, source.bytes + lead, source.scalar_offset};
    }

    KITTENS_DEVICE static int linear_offset(int pass, int thread) {
        return (thread / wave_lanes * passes + pass) * wave_bytes + thread % wave_lanes * b128_bytes;
    }
    KITTENS_DEVICE static Coordinate position(int pass, int thread) {
        const int linear = linear_offset(pass, thread);
        const int row = linear / Tile::row_bytes;
        return {row, Tile::col_at(row, linear % Tile::row_bytes)};
    }

    // Row r of the tile is `rows`(r) bytes into the buffer: contiguous_rows, listed_rows or any other function.
    template <class Rows>
    KITTENS_DEVICE void init_offsets_of(const Rows& rows, int first_col = 0) {
        const int thread = thread_id();
        wave = wave_id();
#pragma unroll
        for (int pass = 0; pass < passes; ++pass) {
            const Coordinate at = position(pass, thread);
            offsets[pass] = rows(at.row) + (first_col + at.col) * sizeof(T);
            if constexpr (fill == Fill::direct) offsets[pass] += lead - pass % 4 * wave_bytes;
        }
    }
    // The tile is filled from (first_row, first_col) of the window.
    KITTENS_DEVICE void init_offsets(int64_t row_bytes, int first_row = 0, int first_col = 0) {
        init_offsets_of(contiguous_rows{static_cast<uint32_t>(row_bytes), first_row}, first_col);
    }

    template <int set = 0>
    KITTENS_DEVICE void issue(buffer source, Tile tile) {
        issue_at<set>(prepared(source), tile, offsets);
    }
    // The same from prepared(source): for loops that keep it in registers.
    template <int set = 0>
    KITTENS_DEVICE void issue_prepared(buffer source, Tile tile) {
        issue_at<set>(source, tile, offsets);
    }

    // One load of a direct fetch, for schedules that place each by itself.
    template <int pass>
    KITTENS_DEVICE void issue_pass(buffer source, Tile tile) const {
        issue_prepared_pass<pass>(prepared(source), tile);
    }
    template <int pass>
    KITTENS_DEVICE void issue_prepared_pass(buffer source, Tile tile) const {
        static_assert(fill == Fill::direct);
        buffer_load_to_lds_one<pass % 4>(source, offsets[pass],
                                         tile.data + (wave * passes + pass / 4 * 4) * wave_bytes);
    }

    // Rows from valid_rows and chunks from valid_cols on read as zero; a chunk that valid_cols cuts is loaded
    // whole: see zero_columns.
    template <int set = 0>
    KITTENS_DEVICE void issue_valid(buffer source, Tile tile, int valid_rows, int valid_cols) {
        uint32_t masked[passes];
        mask(masked, valid_rows, valid_cols);
        issue_at<set>(prepared(source), tile, masked);
    }
    KITTENS_DEVICE void mask(uint32_t (&masked)[passes], int valid_rows, int valid_cols) const {
        const int thread = thread_id();
#pragma unroll
        for (int pass = 0; pass < passes; ++pass) {
            const Coordinate at = position(pass, thread);
            masked[pass] = at.row < valid_rows && at.col < valid_cols ? offsets[pass] : out_of_range;
        }
    }

    template <int set = 0>
    KITTENS_DEVICE void issue_at(buffer source, Tile tile, const uint32_t (&at)[passes]) {
        const int thread = thread_id();
        if constexpr (fill == Fill::direct) {
            for_each_index<(passes + 3) / 4>([&](auto group) {
                constexpr int first = group.value * 4, count = passes - first < 4 ? passes - first : 4;
                shared_byte* destination = tile.data + (wave * passes + first) * wave_bytes;
                buffer_load_to_lds<count>(source, at + first, destination);
            });
        } else {
#pragma unroll
            for (int pass = 0; pass < passes; ++pass)
                if (active(pass, thread)) data[set][pass] = load_elements<T, b128, fill>(source, at[pass]);
        }
    }
    template <int set = 0>
    KITTENS_DEVICE void commit(Tile tile) const {
        if constexpr (fill != Fill::direct)
            for_each_index<commit_items>([&](auto piece) { commit_item<piece.value, set>(tile); });
    }

    // Through registers, one load and one write at a time, for schedules that place each by itself.
    static constexpr int issue_items = passes, commit_items = passes;
    template <int pass, int set = 0>
    KITTENS_DEVICE void issue_item(buffer source) {
        static_assert(fill == Fill::registers);
        if (active(pass, thread_id())) data[set][pass] = buffer_load<b128>(source, offsets[pass]);
    }
    template <int pass, int set = 0>
    KITTENS_DEVICE void commit_item(Tile tile) const {
        const int thread = thread_id();
        if (active(pass, thread)) lds_write(data[set][pass], tile.data + linear_offset(pass, thread));
    }
};

// The same for a tile that is the transpose of its window: a thread takes 8 (if there are too few blocks for
// all threads, 4) columns of 4 rows of the window and writes as many runs of 4. gfx942 reads transposed
// operands this way; gfx950 has ds_read_b64_tr_b16 instead.
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
    static constexpr int loads_per_wave = passes * block_rows;
    static_assert(blocks % wave_lanes == 0, "a tile is filled by whole waves");

    uint32_t offsets[passes];
    uint32_t row_step;
    Row data[sets][passes][block_rows];

    // Sixteen neighbouring lanes, one phase of ds_write_b64, take 8 column blocks and two neighbouring row
    // blocks: with the swizzle rows_written_in_runs they meet all 32 banks, and memory is read in pieces of
    // 128 (64) bytes.
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

    // One load, and one run, at a time.
    static constexpr int issue_items = loads_per_wave, commit_items = passes * block_cols;
    template <int piece, int set = 0>
    KITTENS_DEVICE void issue_item(buffer source) {
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
        const uint32_t halves = j % 2 ? 0x07060302 : 0x05040100;
        const Row(&rows)[block_rows] = data[set][pass];
        const vec<uint32_t, 2> run = {permute_bytes(rows[1][j / 2], rows[0][j / 2], halves),
                                      permute_bytes(rows[3][j / 2], rows[2][j / 2], halves)};
        lds_write(run, tile.data + stepped_offset<Tile>(Tile::offset(block.col, block.row), j, 0));
    }
};

// A matrix twice in LDS from one load of it, as it lies and transposed: a thread takes 8 columns of 4 rows. Row r of the
// window is row `Place`(r) of the tile as it lies; neighbours of every 4 stay neighbours.
template <class Straight, class Turned, int Threads, int (*Place)(int)>
struct global_to_shared_both_ways {
    using T = typename Straight::element;
    using Blocks = global_to_shared_transposed<Turned, Threads, Fill::registers>;
    static constexpr int rows = Blocks::block_rows, cols = 8;
    static_assert(Blocks::passes == 1 && Blocks::block_cols == cols && Blocks::blocks == Threads,
                  "a block of each thread");
    static_assert(Straight::rows == Turned::cols && Straight::cols == Turned::rows && Place(3) == 3);

    uint32_t offsets[rows];
    uint32_t straight_at, turned_at[2], halves[2];
    vec<uint32_t, 4> data[rows];
    vec<uint32_t, 2> runs[cols];
    // Two rows of the transposed tile fill a window of banks, and lanes write rows 8 apart: every other one takes the odd column
    // of two when its neighbours take the even one, or they would meet in one half.
    static constexpr bool alternates = Turned::key(1) == 0;

    // thread: 0 .. Threads-1. Columns from valid_cols on read as zero.
    KITTENS_DEVICE void init_offsets(int thread, int64_t row_bytes, int valid_cols) {
        const Coordinate block = Blocks::block_of(thread);
#pragma unroll
        for (int i = 0; i < rows; ++i)
            offsets[i] = block.col < valid_cols
                             ? (block.row + i) * static_cast<uint32_t>(row_bytes) + block.col * sizeof(T)
                             : out_of_range;
        straight_at = Straight::offset(Place(block.row), block.col);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int odd = alternates ? (i ^ block.col / cols) & 1 : i;
            turned_at[i] = Turned::offset(block.col + odd, block.row);
            halves[i] = odd ? 0x07060302 : 0x05040100;
        }
    }
    template <int row>
    KITTENS_DEVICE void issue(buffer source) {
        data[row] = buffer_load<vec<uint32_t, 4>>(source, offsets[row]);
    }
    template <int row>
    KITTENS_DEVICE void commit_row(Straight tile) const {
        lds_write(data[row], tile.data + stepped_offset<Straight>(straight_at, row, 0));
    }
    // Column `col` of the rows, or the other one of two; after all of them the rows may be replaced.
    template <int col>
    KITTENS_DEVICE void turn() {
        runs[col] = {permute_bytes(data[1][col / 2], data[0][col / 2], halves[col % 2]),
                     permute_bytes(data[3][col / 2], data[2][col / 2], halves[col % 2])};
        materialize(runs[col]);
    }
    template <int col>
    KITTENS_DEVICE void commit_column(Turned tile) const {
        lds_write(runs[col], tile.data + stepped_offset<Turned>(turned_at[col % 2], col & ~1, 0));
    }
};

// Clears what a chunk cut by the end of the matrix brought along: columns first.. of the chunk that holds
// column `first`.
template <int Threads, class Tile>
KITTENS_DEVICE void zero_columns(Tile tile, int first) {
    using T = typename Tile::element;
    constexpr int per_chunk = b128_bytes / sizeof(T);
    const int chunk_begin = first / per_chunk * per_chunk;
#pragma clang loop unroll(disable) vectorize(disable)
    for (int index = thread_id(); index < Tile::rows * per_chunk; index += Threads) {
        const int row = index / per_chunk, col = chunk_begin + index % per_chunk;
        if (col >= first) lds_write(T(0), tile.data + Tile::offset(row, col));
    }
}

}  // namespace kittens
