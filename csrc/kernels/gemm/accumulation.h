// kernels/gemm/accumulation.h: how the products of a K tile are added to those of the tiles before.
// SPDX-License-Identifier: MIT
#pragma once
#include "arguments.h"
#include "operand.h"

namespace hipkittens::gemm {

// The matrix instructions add to the sums themselves. An accumulation that promotes, as for scales of blocks of K, has the
// products of each K tile summed from zero. The ping-pong loop promotes in the phase after the products: before the first
// begin_k_tile that are zeros, to which `promoted` has to have an answer.
struct AccumulateInPlace {
    static constexpr bool promotes = false;
    KITTENS_DEVICE AccumulateInPlace(const GemmArguments&, KRange) {}
    // Called for the tiles of the range in its order.
    KITTENS_DEVICE void begin_k_tile() {}
    // What the sum of base tile (i, j) becomes at the end of a K tile. Bands of a wave's rows (columns) are counted one after
    // the other.
    template <class Sum>
    KITTENS_DEVICE Sum promoted(Sum, Sum partial, int, int) const {
        return partial;
    }
};

}  // namespace hipkittens::gemm
