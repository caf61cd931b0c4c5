// kernels/attention/dropout.h: which elements of P are dropped, identically in forward and backward.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/philox.h"
#include "../../tiles/tiles.h"
#include "arguments.h"

namespace hipkittens::attention {

using namespace kittens;

// One draw of 128 bits covers a block of 2 queries and 4 keys, 16 bits each. It is a function of the seed, the head and
// the positions of query and key in their sequences, independent of a kernel's tiles. In row layout, a lane holds 8
// adjacent elements of its own row, and adjacent lanes hold the rest of their blocks: every lane draws one block per 8
// weights and passes words to its neighbors, so that no bit is drawn twice or left unused.
struct DropoutDraws {
    static constexpr int queries = 2, keys = 4;  // of a block
    using Words = vec<uint32_t, 8>;

    uint32_t key_low, key_high, sequel;
    uint32_t limit;  // a word is dropped if its upper half is below that of the limit

    KITTENS_DEVICE void start(const Dropout& dropout) {
        const uint64_t seed = dropout.seed[0];
        key_low = uniform(static_cast<uint32_t>(seed));
        key_high = uniform(static_cast<uint32_t>(seed >> 32));
        sequel = uniform(static_cast<uint32_t>(dropout.seed[1]));
        limit = dropout.threshold << 16;
    }

    // head is counted over all batches.
    KITTENS_DEVICE vec<uint32_t, 4> block(uint32_t head, uint32_t query_block, uint32_t key_block) const {
        // Otherwise the ten round keys, which are sums, occupy scalar registers throughout the loop.
        uint32_t low = key_low, high = key_high;
        asm volatile("" : "+s"(low), "+s"(high));
        return kittens::philox({key_block, query_block, head, sequel}, low, high);
    }

    // The upper halves belong to `query` and keys key .. key+7. Lanes l and l ^ 1 hold the two queries of a block.
    KITTENS_DEVICE Words of_query(uint32_t head, uint32_t query, uint32_t key) const {
        const bool odd = query % queries;
        const auto own = block(head, query / queries, key / keys + odd);
        uint32_t first[2], second[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t other = permute_in_4<1, 0, 3, 2>(odd ? own[i] : own[2 + i]);
            first[i] = odd ? other : own[i];
            second[i] = odd ? own[2 + i] : other;
        }
        return {first[0] << 16,  first[0],  first[1] << 16,  first[1],
                second[0] << 16, second[0], second[1] << 16, second[1]};
    }

    // The upper halves belong to `key` and queries query .. query+3 and query+far .. query+far+3. Lanes l .. l+3 hold the
    // four keys of a block.
    KITTENS_DEVICE Words of_key(uint32_t head, uint32_t query, uint32_t key, uint32_t far = 4) const {
        const uint32_t own_query = query + key % 2 * queries + (key % keys / 2 ? far : 0);
        const auto own = block(head, own_query / queries, key / keys);
        const bool late = key % keys / 2;
        const uint32_t shift = key % 2 ? 0 : 16;
        Words words;
        for_each_index<4>([&, own, late](auto lane) KITTENS_INLINE {  // of every four
            constexpr int from = lane.value;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t early = permute_in_4<from, from, from, from>(own[2 * i]),
                               after = permute_in_4<from, from, from, from>(own[2 * i + 1]);
                words[2 * from + i] = late ? after : early;
            }
        });
        return words << shift;
    }
};

}  // namespace hipkittens::attention
