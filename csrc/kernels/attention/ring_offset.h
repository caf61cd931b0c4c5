// kernels/attention/ring_offset.h: where the tile of a ring of LDS tiles is that comes next.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::attention {

using namespace kittens;

// The offset in a ring of LDS tiles.
template <class Tile, int tiles>
struct RingOffset {
    uint32_t value = 0;
    // Returns the number of bytes it moves by, modulo 2^32.
    KITTENS_DEVICE uint32_t advance() {
        const uint32_t before = value;
        value = value == (tiles - 1) * Tile::bytes ? 0 : value + Tile::bytes;
        return value - before;
    }
};

}  // namespace hipkittens::attention
