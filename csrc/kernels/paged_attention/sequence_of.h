// kernels/paged_attention/sequence_of.h: finds the sequence that an index belongs to.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::paged_attention {

using namespace kittens;

// The last of `count` sequences that begins at or before `number`; begins[0] is 0, and they are ascending. Never an empty sequence.
KITTENS_DEVICE uint32_t sequence_of(int number, const int32_t* begins, uint32_t count) {
    uint32_t low = 0, high = count;
    while (high - low > 1) {
        const uint32_t middle = uniform((low + high) / 2);
        if (begins[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    return uniform(low);
}

}  // namespace hipkittens::paged_attention
