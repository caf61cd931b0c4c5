// kernels/rotary/joined.h: heads with a rotated and an unrotated part, concatenated and written to a cache.
// SPDX-License-Identifier: MIT
#pragma once
#include "angles.h"
#include "cached_unit.h"
#include "rows.h"

namespace hipkittens::rotary {

// A thread processes one unit of a token's head, and a workgroup the units of one part, so that its threads do the same work. Nothing
// is shared: most of a latent head is only copied, and this way even the few tokens of a decoding step fill the device.
template <class T, bool wide>
KITTENS_DEVICE void join_and_rotate(const JoinedArguments& arguments) {
    const uint32_t workgroup = kittens::workgroup_id_x();
    uint32_t number_of_part = 0, first = 0;
#pragma unroll
    for (uint32_t i = 0; i + 1 < joined_parts; ++i)
        if (workgroup >= arguments.ends[i]) number_of_part = i + 1, first = arguments.ends[i];
    // Read from memory, see device.cpp: an array in registers cannot be indexed dynamically.
    constexpr uint32_t parts_before = __builtin_offsetof(JoinedArguments, parts) / sizeof(JoinedPart);
    static_assert(__builtin_offsetof(JoinedArguments, parts) % sizeof(JoinedPart) == 0);
    const auto part = kittens::reload_arguments<JoinedPart>(parts_before + kittens::uniform(number_of_part));
    const uint32_t thread = (workgroup - first) * joined_threads + kittens::thread_id();
    const uint32_t index = part.units.quotient(thread), of_token = thread - index * part.units.value;
    const uint32_t head = part.head_units.quotient(of_token),
                   number = of_token - head * part.head_units.value;
    const uint32_t batch = arguments.tokens.quotient(index), token = index - batch * arguments.tokens.value;
    if (batch >= arguments.batch) return;
    const T* from = row_of<T>(part.in, batch, token, head) - part.moved;
    Unit mine;
    Loaded<T> x;
    if (part.turns) {
        // Loaded here instead of earlier, where it would occupy scalar registers of threads that only copy.
        const Rotation rotation = kittens::reload_arguments<JoinedArguments>().rotation;
        mine = Units(rotation)[number];
        x = load_unit(from, mine, wide);
        Pairs values = widened(x);
        Angles(rotation, batch, token).load(mine, wide)(values);
        x = rounded<T>(values);
    } else {
        mine = Units(part.begin, part.end)[number];
        x = load_unit(from, mine, wide);
    }
    if (part.out.data) store_unit(x, result_of<T>(part.out, batch, token, head), mine, wide);
    if constexpr (kittens::is_16bit<T>) {
        if (!part.cached) return;
        const int32_t slot = part.slots.data ? slot_of(part.slots, index) : static_cast<int32_t>(index);
        if (slot >= 0) store_unit_in_cache<T>(x, part.slots, part.cache, slot, head, mine, wide);
    }
}

}  // namespace hipkittens::rotary
