// kernels/gemm/accumulation.h: how the products of a K tile are added to those of the tiles before.
// SPDX-License-Identifier: MIT
#pragma once
#include "epilogue.h"
#include "operand.h"

namespace hipkittens::gemm {

// What an accumulation is made for: the tile of the workgroup, the first band of a wave in its piece, and LDS of its own.
struct AccumulationPlace {
    TileCoordinate tile;
    int row, col;
    shared_byte* lds;
};

// The matrix instructions add to the sums themselves. An accumulation that promotes, as for scales of blocks of K, has the
// products of each K tile summed from zero. The ping-pong loop promotes in the phase after the products: before the first
// of them that are zeros, to which `promoted` has to have an answer.
struct AccumulateInPlace {
    static constexpr bool promotes = false;
    // Loads from memory to LDS of a wave for each K tile, and the LDS for it.
    static constexpr int loads_per_tile = 0, lds_bytes = 0;
    KITTENS_DEVICE AccumulateInPlace(const GemmArguments&, KRange, AccumulationPlace) {}
    // Start the loads of what the range's first K tile needs, and the next one in its order, to the place of an LDS buffer.
    KITTENS_DEVICE void issue_first(int) {}
    KITTENS_DEVICE void issue(int) {}
    // The same of the streamed loop, to registers.
    struct Factors {};
    KITTENS_DEVICE void load_first(Factors&) {}
    KITTENS_DEVICE void load_next(Factors&) {}
    // Reads what the band needs of the K tile in a buffer; used from the next begin_band on.
    template <int band_row, int band_col>
    KITTENS_DEVICE void read(int) {}
    // Called for the tiles of the range in its order.
    KITTENS_DEVICE void begin_k_tile() {}
    // Called for each band of a K tile in the ping-pong loop, and once for a K tile where a wave has a single band.
    KITTENS_DEVICE void begin_band() {}
    // What the sum of base tile (i, j) becomes at the end of a K tile. Bands of a wave's rows (columns) are counted one after
    // the other.
    template <class Sum>
    KITTENS_DEVICE Sum promoted(Sum, Sum partial, int, int) const {
        return partial;
    }
};

}  // namespace hipkittens::gemm
