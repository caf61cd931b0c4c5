// tiles/store_shared_to_global.h: a workgroup writes a shared tile to a window of a matrix.
// SPDX-License-Identifier: MIT
#pragma once
#include "global_layout.h"
#include "shared_tile.h"

namespace kittens {

// Chunks of 16 bytes; a chunk that valid_cols cuts goes out element by element. Rows below the matrix are
// dropped by the buffer. The caller has met a barrier since the tile was written.
template <int Threads, class Tile>
KITTENS_DEVICE void store(const global_window& to, int64_t row_bytes, Tile source,
                          int valid_cols = Tile::cols) {
    using T = typename Tile::element;
    constexpr int per_chunk = b128_bytes / sizeof(T);
    const buffer destination = to.view();
#pragma clang loop unroll(disable) vectorize(disable)
    for (int index = thread_id(); index < Tile::bytes / b128_bytes; index += Threads) {
        const int row = index / (Tile::cols / per_chunk), col = index % (Tile::cols / per_chunk) * per_chunk;
        using Elements = vec<T, per_chunk>;
        const Elements elements = lds_read<Elements>(source.data + Tile::offset(row, col));
        const uint32_t offset = row * static_cast<uint32_t>(row_bytes) + col * sizeof(T);
        if (col + per_chunk <= valid_cols) {
            buffer_store(elements, destination, offset);
        } else {
#pragma unroll
            for (int n = 0; n < per_chunk; ++n) {
                const T value = elements[n];
                buffer_store(value, destination,
                             col + n < valid_cols ? offset + n * sizeof(T) : out_of_range);
            }
        }
    }
}

}  // namespace kittens
