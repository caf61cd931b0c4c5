// kernels/attention/row_tiles.h: tiles of rows of one or more tensors, of one head after the other.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::attention {

using namespace kittens;

// Rows first .. past-1, `rows` at a time, of each of `heads` heads. Past the last tile views are empty: their loads touch no memory
// but count like any other, so waits stay the same.
template <int count, int rows>
struct RowTiles {
    int first, past, head, left;  // head: of the views; left: tiles not yet begun to load
    int row, next_row;            // of the views, and of those after them
    int64_t step_bytes[count];
    global_window windows[count];
    buffer views[count];

    KITTENS_DEVICE void begin(int first_row, int past_row, int first_head, int heads) {
        first = first_row, past = next_row = past_row, head = first_head - 1;
        left = (past - first + rows - 1) / rows * heads;
    }
    // matrix(index<i>, head): that of tensor i.
    template <class Matrix>
    KITTENS_DEVICE void next(const Matrix& matrix) {
        if (__builtin_expect(next_row >= past, false)) {
            if (left > 0) ++head;
            next_row = first;
            for_each_index<count>([&](auto i) {
                const auto of_head = matrix(i, head);
                windows[i.value] = of_head.window(first, 0);
                step_bytes[i.value] = rows * of_head.row_bytes();
            });
        }
        row = next_row;
        for_each_index<count>([&](auto i) {
            views[i.value] = windows[i.value].view();
            if (left <= 0) views[i.value].bytes = 0;
            windows[i.value].advance(step_bytes[i.value]);
        });
        next_row += rows;
        --left;
    }
};

}  // namespace hipkittens::attention
