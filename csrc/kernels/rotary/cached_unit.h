// kernels/rotary/cached_unit.h: stores the features of a lane to a slot of a cache.
// SPDX-License-Identifier: MIT
#pragma once
#include "../cache_store.h"
#include "unit.h"

namespace hipkittens::rotary {

template <class T>
KITTENS_DEVICE void store_unit_in_cache(const Loaded<T>& x, const CacheSlots& slots, const CacheOutput& cache,
                                        uint32_t slot, uint32_t head, const Unit& unit, bool wide) {
    if (wide) {
        const Loaded<T> ordered = in_memory_order(x, unit);
        const uint32_t second = unit.step == 1 ? unit.b : unit.a + pairs_per_lane;
        store_in_cache<T>(slots, cache, slot, head, unit.a, 1, unit.count_a, ordered.a);
        store_in_cache<T>(slots, cache, slot, head, second, 1, unit.count_b, ordered.b);
    } else {
        store_in_cache<T>(slots, cache, slot, head, unit.a, unit.step, unit.count_a, x.a);
        store_in_cache<T>(slots, cache, slot, head, unit.b, unit.step, unit.count_b, x.b);
    }
}

}  // namespace hipkittens::rotary
