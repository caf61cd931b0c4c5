// kernels/gemm/accumulation.h: how the products of a K tile are added to those of the previous tiles.
// SPDX-License-Identifier: MIT
#pragma once
#include "epilogue.h"
#include "operand.h"

namespace hipkittens::gemm {

// The context of an accumulation: the tile of the workgroup, a wave's first band in its piece, and dedicated LDS.
struct AccumulationPlace {
    TileCoordinate tile;
    int row, col;
    shared_byte* lds;
};

// The matrix instructions add directly to the accumulators. With an accumulation that promotes, as for scales of blocks of
// K, the products of each K tile are summed starting from zero. The ping-pong loop promotes in the phase after the
// products; ahead of the first products it therefore calls `promoted` with zeros, which must be handled.
struct AccumulateInPlace {
    static constexpr bool promotes = false;
    // Loads from memory to LDS per wave and K tile, and the LDS for them.
    static constexpr int loads_per_tile = 0, lds_bytes = 0;
    KITTENS_DEVICE AccumulateInPlace(const GemmArguments&, KRange, AccumulationPlace) {}
    // Start the loads for the range's first K tile, and for the next one in order, to the given LDS buffer.
    KITTENS_DEVICE void issue_first(int) {}
    KITTENS_DEVICE void issue(int) {}
    // The same for the streamed loop, to registers.
    struct Factors {};
    KITTENS_DEVICE void load_first(Factors&) {}
    KITTENS_DEVICE void load_next(Factors&) {}
    // Reads what the band needs of the K tile in a buffer; used from the next begin_band on.
    template <int band_row, int band_col>
    KITTENS_DEVICE void read(int) {}
    // Called for the tiles of the range in its order.
    KITTENS_DEVICE void begin_k_tile() {}
    // Called for each band of a K tile in the ping-pong loop, and once per K tile where a wave has a single band.
    KITTENS_DEVICE void begin_band() {}
    // The new accumulator of base tile (i, j) at the end of a K tile. Base tiles of a wave's bands of rows (columns) are
    // numbered consecutively.
    template <class Sum>
    KITTENS_DEVICE Sum promoted(Sum, Sum partial, int, int) const {
        return partial;
    }
};

}  // namespace hipkittens::gemm
