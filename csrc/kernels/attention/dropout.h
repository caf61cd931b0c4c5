// kernels/attention/dropout.h: which weights are dropped: the same in forward and backward, whoever asks.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/philox.h"
#include "../../tiles/tiles.h"
#include "arguments.h"

namespace hipkittens::attention {

// One draw of 128 bits serves 2 queries and 4 keys, 16 bits each: a lane that holds 4 neighbouring keys of a query needs
// one draw, and one that holds 2 neighbouring queries of a key as well.
struct DropoutBlock {
    static constexpr int queries = 2, keys = 4;
    kittens::vec<uint32_t, 4> bits;

    // The block that (query, key) lies in. head counts over all batches.
    KITTENS_DEVICE DropoutBlock(const Dropout& dropout, uint32_t head, uint32_t query, uint32_t key) {
        const uint64_t seed = dropout.seed[0];
        bits = kittens::philox({key / keys, query / queries, head, static_cast<uint32_t>(dropout.seed[1])},
                               static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    }
    KITTENS_DEVICE bool keeps(const Dropout& dropout, uint32_t query, uint32_t key) const {
        const uint32_t word = bits[query % queries * 2 + key % keys / 2];
        return (key % 2 ? word >> 16 : word & 0xffff) >= dropout.threshold;
    }
};

}  // namespace hipkittens::attention
