// kernels/workgroup_order.h: which tile a workgroup takes, so that neighbors share L2 and LLC.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

namespace hipkittens {

struct TileOrder {
    uint32_t tiles_m, tiles_n;
    uint32_t xcds;         // workgroup i runs on XCD i % xcds
    uint32_t xcd_chunk;    // consecutive tiles assigned to one XCD
    uint32_t window_rows;  // tiles of one column taken before the next column: the L2 window
};

struct TilePosition {
    uint32_t m, n;
};

// XCD chunking, then windows of rows; the order of HipKittens' paper (arXiv 2511.08083, section 3.4). The
// last, incomplete round of chunks keeps its order, so the map is a permutation for every size.
constexpr uint32_t chunked_workgroup(uint32_t workgroup, uint32_t count, uint32_t xcds, uint32_t chunk) {
    const uint32_t round = xcds * chunk;
    if (workgroup >= count / round * round) return workgroup;
    const uint32_t xcd = workgroup % xcds, local = workgroup / xcds;
    return local / chunk * round + xcd * chunk + local % chunk;
}

// Tile `index` of a grid in the order of windows: the rows of a window, then its next column.
constexpr TilePosition tile_in_windows(uint32_t index, uint32_t tiles_m, uint32_t tiles_n,
                                       uint32_t window_rows) {
    const uint32_t window = window_rows * tiles_n;
    const uint32_t first_row = index / window * window_rows;
    const uint32_t left = tiles_m - first_row;
    const uint32_t rows = left < window_rows ? left : window_rows;
    return {first_row + index % window % rows, index % window / rows};
}

constexpr TilePosition tile_of_workgroup(uint32_t workgroup, TileOrder order) {
    const uint32_t index =
        chunked_workgroup(workgroup, order.tiles_m * order.tiles_n, order.xcds, order.xcd_chunk);
    return tile_in_windows(index, order.tiles_m, order.tiles_n, order.window_rows);
}

}  // namespace hipkittens
