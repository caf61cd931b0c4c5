// tiles/tile_source.h: iterates over the tiles of a range in memory, followed by empty tiles past its end.
// SPDX-License-Identifier: MIT
#pragma once
#include "global_layout.h"

namespace kittens {

// Loops issue loads ahead of the tile that they compute with, up to the end of the range and beyond. Views past the last
// tile are empty: their loads touch no memory but count like all others, so the wait counts stay the same.
//
// A source defines where tiles are:
//   view(left)       the buffer of the next tile when `left` tiles are not yet issued; empty for left <= 0
//   advance()        moves to the next tile
//   close()          optional: makes all later views empty
template <class Source>
struct tile_iterator {
    Source source;
    int left;

    KITTENS_DEVICE buffer view() const { return source.view(left); }
    // `steady`: at least one more tile remains after this one.
    template <bool steady = false>
    KITTENS_DEVICE void advance() {
        source.advance();
        if constexpr (!steady && requires { source.close(); })
            if (left == 1) source.close();
        --left;
    }
    KITTENS_DEVICE buffer next() {
        const buffer result = view();
        advance();
        return result;
    }
};

// All tiles in one buffer, with a moving scalar offset: the K tiles of an operand whose rows are all within 4 GiB.
struct tiles_of_buffer {
    buffer current;
    uint32_t step;  // bytes

    KITTENS_DEVICE static tile_iterator<tiles_of_buffer> iterator(buffer first, uint32_t step, int count) {
        tiles_of_buffer source{first, step};
        if (count == 0) source.close();
        return {source, count};
    }
    KITTENS_DEVICE buffer view(int) const { return current; }
    KITTENS_DEVICE void advance() { current.scalar_offset += step; }
    KITTENS_DEVICE void close() { current.bytes = current.scalar_offset = step = 0; }
};

// Tiles of a fixed number of rows of a matrix: the base moves, 64 bits wide. A view ends at the last column of its last row.
struct tiles_of_rows {
    const char* base;
    int64_t step;
    uint32_t whole, last, empty;  // bytes of a full tile, of the last one, of a view past the end

    // Covers rows first .. past-1 of the matrix; `lead`: loads begin this many bytes early (load_global_to_shared.h).
    template <int tile_rows, class T>
    KITTENS_DEVICE static tile_iterator<tiles_of_rows> iterator(const global_matrix<T>& matrix, int first,
                                                                int past, uint32_t lead) {
        const auto row_bytes = static_cast<uint32_t>(matrix.row_bytes());
        const uint32_t row = matrix.cols * static_cast<uint32_t>(sizeof(T)) + lead;
        const int count = (past - first + tile_rows - 1) / tile_rows;
        const int rows = matrix.rows - first - (count - 1) * tile_rows;
        const uint32_t whole = (tile_rows - 1) * row_bytes + row;
        return {{reinterpret_cast<const char*>(matrix.data) + first * matrix.row_bytes() - lead,
                 tile_rows * matrix.row_bytes(), whole,
                 rows < tile_rows ? (rows - 1) * row_bytes + row : whole, lead},
                count};
    }
    KITTENS_DEVICE buffer view(int left) const {
        // Values, not a choice between addresses to load from, which would keep everything around them in memory.
        const uint32_t some = uniform(whole), end = uniform(last);
        return {base, left > 1 ? some : left == 1 ? end : empty};
    }
    KITTENS_DEVICE void advance() { base += opaque_scalar(step); }
};

// Tiles of a window that ends with its matrix: for ranges that the loop moves to another matrix (by replacing `window`).
struct tiles_of_window {
    global_window window;
    int64_t step;

    KITTENS_DEVICE buffer view(int left) const {
        buffer result = window.view();
        if (left <= 0) result.bytes = 0;
        return result;
    }
    KITTENS_DEVICE void advance() { window.advance(step); }
};

// Rows found through a page table, like those of a key-value cache: row r is row r % page_rows of page table[r / page_rows].
// A page has a power of two of rows and begins at `pool` + page x page_bytes. A view covers consecutive rows of one page:
// those of a tile or, where pages are smaller, those that one wave loads of it.
struct tiles_of_pages {
    const char* pool;
    int64_t page_bytes;
    const int32_t* table;
    uint32_t row_bytes, used_bytes;  // stride between rows, and used bytes of a row
    int page_rows, row, row_step, past;

    KITTENS_DEVICE buffer view(int left) const {
        if (left <= 0 || row >= past) return {pool, 0};
        const int inside = row & (page_rows - 1), page = uniform(table[row / page_rows]);
        const int rows = page_rows - inside < past - row ? page_rows - inside : past - row;
        return {pool + page * page_bytes + inside * static_cast<int64_t>(row_bytes),
                (rows - 1) * row_bytes + used_bytes};
    }
    KITTENS_DEVICE void advance() { row += row_step; }
};

// Rows found through a list, like those of tokens sorted by expert: row r is row index[r] - lowest of the buffer. They
// enter the lanes' offsets once (global_to_shared::init_offsets_of), so tiles along the rows advance like contiguous ones.
struct listed_rows {
    const int32_t* index;
    int count;
    int32_t lowest;  // lowest row in the list: all listed rows are within 4 GiB of it
    uint32_t row_bytes;

    KITTENS_DEVICE uint32_t operator()(int row) const {
        return row < count ? (index[row] - lowest) * row_bytes : out_of_range;
    }
};
struct contiguous_rows {
    uint32_t row_bytes;
    int first = 0;
    KITTENS_DEVICE uint32_t operator()(int row) const { return (first + row) * row_bytes; }
};

}  // namespace kittens
