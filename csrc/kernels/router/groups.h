// kernels/router/groups.h: which groups of experts a token chooses from.
// SPDX-License-Identifier: MIT
#pragma once
#include "choice.h"
#include "kinds.h"

namespace hipkittens::router {

// Of a wave, behind room for a value of each expert: the entry of each group.
inline constexpr int groups_lds_bytes = most_groups * 8;

// Bit g: group g is chosen. A group's score is its greatest value; with a bias, the sum of its greatest two. Ties are the lower
// group's. `values` are in the order of lanes; `lds` is this wave's.
template <int per_lane>
KITTENS_DEVICE uint64_t chosen_groups(const RouteArguments& arguments, const float (&values)[per_lane],
                                      kittens::shared_byte* lds) {
    const uint32_t lane = kittens::lane_id();
    kittens::shared_byte* entries = lds + per_lane * 64 * 4;
#pragma unroll
    for (int j = 0; j < per_lane; ++j) kittens::lds_write(values[j], lds + (j * 64 + lane) * 4);
    kittens::compiler_fence();

    // Lanes share groups evenly; each has every `lanes`-th expert of its group.
    uint32_t lanes = 64;
    while (lanes * arguments.groups > 64) lanes /= 2;
    const uint32_t group = lane / lanes;
    // The two greatest keys, 0 for one that there is not.
    uint32_t first = 0, second = 0;
    const auto add = [&](uint32_t key) {
        const uint32_t smaller = key < first ? key : first;
        first = larger_of(first, key);
        second = larger_of(second, smaller);
    };
    if (group < arguments.groups)
        for (uint32_t i = lane % lanes; i < arguments.group_size; i += lanes)
            add(kittens::order_key(kittens::lds_read<float>(lds + (group * arguments.group_size + i) * 4)));
    for (uint32_t step = 1; step < lanes; step *= 2) {
        const uint32_t other = kittens::read_lane(first, lane ^ step),
                       next = kittens::read_lane(second, lane ^ step);
        add(other);
        add(next);
    }
    float score = kittens::value_of_order_key(first);
    if (arguments.bias && arguments.group_size > 1) score += kittens::value_of_order_key(second);
    // The key above, and below it what makes the first of equal groups the greatest.
    const uint64_t entry = static_cast<uint64_t>(kittens::order_key(score)) << 32 | (most_groups - group);
    if (group < arguments.groups && lane % lanes == 0) kittens::lds_write(entry, entries + group * 8);
    kittens::compiler_fence();
    uint32_t greater = 0;
    const bool is_group = lane < arguments.groups;
    const uint64_t mine = is_group ? kittens::lds_read<uint64_t>(entries + lane * 8) : 0;
    for (uint32_t other = 0; other < arguments.groups; ++other)
        greater += kittens::lds_read<uint64_t>(entries + other * 8) > mine;
    return kittens::lanes_where(is_group && greater < arguments.chosen_groups);
}

}  // namespace hipkittens::router
