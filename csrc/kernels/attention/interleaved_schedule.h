// kernels/attention/interleaved_schedule.h: which slot of the interleaved forward's loop does what.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::attention {

using namespace kittens;

// The body of the loop is two chunks of keys, which are one tile in LDS or, with `halves`, two. A chunk has a slot for each matrix
// step: first those of P V, over keys with value_dim as the inner loop, then those of Q K^T, over head_dim.
template <int head_dim, int value_dim, bool halves>
struct InterleavedSchedule {
    static constexpr int chunk = 32;
    static constexpr int row_of(int half) { return halves ? 0 : half * chunk; }  // of a chunk in its tile
    static constexpr int qk_steps = head_dim / 16, pv_steps = value_dim / 16;
    static constexpr int pairs = 8;  // of a lane's scores in a chunk
    static constexpr int chunk_slots = pv_steps + qk_steps, slots = 2 * chunk_slots;
    // Fragments in registers, for as many slots: where a slot has used its fragment, that of the slot so much later is read.
    static constexpr int ring = halves ? pv_steps / 2 : pv_steps;
    static_assert(ring <= qk_steps && pv_steps % ring == 0 && slots % ring == 0, "a body ends as it began");
    static constexpr int fragment_of(int half, int slot) { return (half * chunk_slots + slot) % ring; }
    // The barrier of a tile is placed where LDS reads of the previous one have had time to complete.
    static constexpr int barrier_slot = chunk_slots - ring + ring / 4;

    // Chunk `half` of a body. `first`: there is no previous chunk; `last`: there is no next chunk. `refill_items`: what follows a
    // barrier; with half a tile, in the next chunk.
    template <int half, bool first, bool last, int refill_items>
    struct Chunk {
        static constexpr bool has_barrier = half == 0 || halves;
        static constexpr int pv_begin = half * chunk_slots, qk_begin = pv_begin + pv_steps,
                             qk_end = pv_begin + chunk_slots, begin = first ? qk_begin : pv_begin,
                             end = last ? qk_begin : qk_end;
        static constexpr every_slot pv{pv_begin, qk_begin}, qk{qk_begin, qk_end}, fences{begin, end, 1, true};
        // The matrix core delivers S some time after its last step.
        static constexpr spread softmax_steps{2 * pairs, begin + 1, end};
        // Registers receive the rest of the previous chunk's values, the next chunk's keys and this chunk's values, the latter not
        // before the barrier of their tile, which delays the first `delayed` of them.
        static constexpr int keys_begin = qk_begin - ring, values_begin = (last ? qk_begin : qk_end) - ring,
                             values_used = last ? half : half + 1,
                             delayed = has_barrier && !last ? ring / 4 + 1 : 0;
        static constexpr every_slot late_value_reads{pv_begin, keys_begin},
            key_reads{keys_begin, last ? keys_begin : values_begin},
            value_reads{values_begin + delayed, values_begin + ring},
            delayed_value_reads{values_begin + delayed, values_begin + 2 * delayed};
        static constexpr in_slot barrier{last ? values_begin : pv_begin + barrier_slot, has_barrier},
            next_values{last ? values_begin : qk_begin, halves && !first};
        static constexpr spread refill = halves
                                             ? spread{refill_items, pv_begin, last ? values_begin : qk_begin}
                                             : spread{refill_items, barrier_slot + 1, chunk_slots + pv_steps};
    };
};

}  // namespace hipkittens::attention
