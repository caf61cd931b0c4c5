// kernels/topk/sort.h: sorts a list of entries in LDS into descending order.
// SPDX-License-Identifier: MIT
#pragma once
#include "row_keys.h"

namespace hipkittens::topk {

// A short list is not moved: the place of each entry is the number of greater entries.
inline constexpr uint32_t longest_ranked = 256;

// Calls place(entry, number of greater entries) for every entry. All entries differ.
template <int waves, class Place>
KITTENS_DEVICE void rank(kittens::shared_byte* entries, uint32_t count, const Place& place) {
    for (uint32_t mine = Team<waves>::lane(); mine < count; mine += Team<waves>::lanes) {
        const Entry entry = kittens::lds_read<Entry>(entries + mine * 8);
        uint32_t greater = 0;
#pragma unroll 4
        for (uint32_t other = 0; other < count; ++other)
            greater += kittens::lds_read<Entry>(entries + other * 8) > entry;
        place(entry, greater);
    }
}

// A bitonic network: `count` is padded to a power of two with zeros, which no entry equals.
template <int waves>
KITTENS_DEVICE void sort(kittens::shared_byte* entries, uint32_t count, Team<waves>& team) {
    constexpr uint32_t lanes = Team<waves>::lanes;
    uint32_t all = 1;
    while (all < count) all *= 2;
    for (uint32_t i = count + Team<waves>::lane(); i < all; i += lanes)
        kittens::lds_write(Entry{0}, entries + i * 8);
    for (uint32_t run = 2; run <= all; run *= 2)
        for (uint32_t step = run / 2; step > 0; step /= 2) {
            team.synchronize();
            for (uint32_t pair = Team<waves>::lane(); pair < all / 2; pair += lanes) {
                const uint32_t low = (pair & ~(step - 1)) * 2 + (pair & (step - 1));
                kittens::shared_byte *first = entries + low * 8, *second = first + step * 8;
                const Entry a = kittens::lds_read<Entry>(first), b = kittens::lds_read<Entry>(second);
                if ((a < b) == ((low & run) == 0)) {
                    kittens::lds_write(b, first);
                    kittens::lds_write(a, second);
                }
            }
        }
    team.synchronize();
}

}  // namespace hipkittens::topk
