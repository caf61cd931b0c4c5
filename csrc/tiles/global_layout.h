// tiles/global_layout.h: matrices in device memory, and the buffer windows through which tiles are loaded.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"

namespace kittens {

// No buffer is longer than largest_buffer. A lane that must not load uses out_of_range as its offset, and
// the hardware returns zero; an offset that the instruction adds to it still fits in 32 bits.
inline constexpr uint32_t largest_buffer = 0xfff00000u, out_of_range = 0xfff80000u;

// The part of a matrix that starts at a given element. Its base is 64 bits wide; only offsets inside a tile
// are 32 bits. The buffer ends exactly where the matrix ends, so rows past the end read zero and stores to
// them are dropped. The first element must be inside the matrix.
struct global_window {
    const char* base;
    int64_t remaining;

    KITTENS_DEVICE void advance(int64_t bytes) {
        base += bytes;
        remaining -= bytes;
    }
    KITTENS_DEVICE buffer view() const {
        // Compared in halves: gfx9 has no scalar 64-bit order comparison, and loops should not use the vector one.
        const uint32_t low = static_cast<uint32_t>(remaining), high = static_cast<uint32_t>(remaining >> 32);
        return {base, high != 0 || low > largest_buffer ? largest_buffer : low};
    }
};

// One matrix: unit stride along its columns, arbitrary stride along its rows (in elements).
template <class T>
struct global_matrix {
    T* data;
    int64_t row_stride;
    int rows, cols;

    KITTENS_DEVICE int64_t row_bytes() const { return row_stride * static_cast<int64_t>(sizeof(T)); }
    KITTENS_DEVICE global_window window(int64_t row, int64_t col) const {
        const int64_t begin = (row * row_stride + col) * static_cast<int64_t>(sizeof(T));
        const int64_t end = ((rows - 1) * row_stride + cols) * static_cast<int64_t>(sizeof(T));
        return {reinterpret_cast<const char*>(data) + begin, end - begin};
    }
};

}  // namespace kittens
