// kernels/attention/row_tiles.h: iterates over tiles of rows of one or more tensors and several heads.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::attention {

using namespace kittens;

// Rows first .. past-1 of several heads, a tile at a time: all rows of one head before those of the next or, with
// heads_inside, the same rows of all heads before the next rows.
struct TileOrder {
    int first, past, first_head, heads;
    bool heads_inside = false, descending = false;  // from the last rows to the first
};

// Past the last tile, views are empty: their loads touch no memory but count like all others, so the waits stay the same.
template <int count, int tile_rows>
struct RowTiles {
    int row;                // of the views; past the last tile, an earlier valid one
    bool turned;            // the views are the first of the inner loop
    int left;               // tiles whose loads have not begun
    int inner, inner_left;  // tiles of the inner loop, and those from the current views on
    int outer_head;         // the first one with heads_inside, otherwise that of the views
    int row_step;           // from one tile to the next; 0 with heads_inside
    int turn_step;          // with heads_inside, from their rows to the next
    int all_rows;
    const char* next_data[count];
    int64_t step_bytes[count];
    // Bytes between rows, and the part of them past the last column; 32 bits, like offsets in a tile.
    uint32_t row_bytes[count], past_columns[count];
    buffer views[count];

    KITTENS_DEVICE bool heads_inside() const { return row_step == 0; }
    // Of the views.
    KITTENS_DEVICE int head() const { return outer_head + (heads_inside() ? inner - inner_left : 0); }

    // matrix(index<i>): tensor i of the first head; head_bytes(index<i>): bytes from one head of it to the next.
    template <class Matrix, class HeadBytes>
    KITTENS_DEVICE void begin(const TileOrder& order, const Matrix& matrix, const HeadBytes& head_bytes) {
        const int tiles = (order.past - order.first + tile_rows - 1) / tile_rows;
        turn_step = order.descending ? -tile_rows : tile_rows;
        row_step = order.heads_inside ? 0 : turn_step;
        inner = order.heads_inside ? order.heads : tiles, left = tiles * order.heads;
        // The first call of next() steps to the first tile.
        const int first_row = order.descending ? order.first + (tiles - 1) * tile_rows : order.first;
        outer_head = order.first_head, row = first_row - row_step, inner_left = inner + 1;
        for_each_index<count>([&](auto i) {
            const auto first = matrix(i);
            const int64_t bytes = first.row_bytes(), column_bytes = first.cols * int64_t{sizeof(*first.data)};
            all_rows = first.rows;
            next_data[i.value] = reinterpret_cast<const char*>(first.data) + first_row * bytes;
            row_bytes[i.value] = static_cast<uint32_t>(bytes);
            past_columns[i.value] = static_cast<uint32_t>(bytes - column_bytes);
            step_bytes[i.value] = order.heads_inside ? head_bytes(i) : row_step * bytes;
        });
    }
    // The step past the last tile was a turn of the inner loop, and the views stayed as they were.
    KITTENS_DEVICE bool ended() const { return left < 0; }
    template <class HeadBytes>
    KITTENS_DEVICE void next(const HeadBytes& head_bytes) {
        // No branch but the rare one, whose code is then placed after the loop's.
        row += row_step;
        turned = --inner_left == 0;
        if (__builtin_expect(turned, false)) turn(head_bytes);
        const int rows = all_rows - row < tile_rows ? all_rows - row : tile_rows;
        const uint32_t any_left = -left >> 31;  // all bits or none: a conditional would be a branch
        for_each_index<count>([&](auto i) {
            views[i.value] = {next_data[i.value],
                              (rows * row_bytes[i.value] - past_columns[i.value]) & any_left};
            next_data[i.value] += step_bytes[i.value];
        });
        --left;
    }

  private:
    template <class HeadBytes>
    KITTENS_DEVICE void turn(const HeadBytes& head_bytes) {
        if (left <= 0) {
            row -= row_step, inner_left = 1;
            return;
        }
        inner_left = inner;
        row += heads_inside() ? turn_step : -inner * row_step;
        outer_head += heads_inside() ? 0 : 1;
        for_each_index<count>([&](auto i) {
            next_data[i.value] += (heads_inside() ? turn_step * int64_t{row_bytes[i.value]} : head_bytes(i)) -
                                  inner * step_bytes[i.value];
        });
    }
};

}  // namespace hipkittens::attention
