// kernels/router/groups.h: selects the groups of experts that a token chooses from.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/order_key.h"
#include "kinds.h"
#include "team.h"

namespace hipkittens::router {

// Per token, after the space for one number per expert: one entry per group.
inline constexpr int groups_lds_bytes = most_groups * 8;

// `lds` contains the value of each expert; on return it contains, per group, whether the group is chosen. A group's score is
// its greatest value or, with a bias, the sum of its two greatest values. Ties go to the lower group.
template <int lanes>
KITTENS_DEVICE void choose_groups(const RouteArguments& arguments, kittens::shared_byte* lds,
                                  kittens::shared_byte* entries) {
    using Lanes = Team<lanes>;
    // Lanes share groups evenly, and each has every `share`-th expert of its group. If there are more groups than lanes, a lane
    // processes several.
    uint32_t share = lanes;
    while (share > 1 && share * arguments.groups > lanes) share /= 2;
    const uint32_t step_of_groups = lanes / share, part = Lanes::lane() % share;
    for (uint32_t base = 0; base < arguments.groups; base += step_of_groups) {
        const uint32_t group = base + Lanes::lane() / share;
        const bool is_group = group < arguments.groups;
        // The two greatest keys, 0 if there is none.
        uint32_t first = 0, second = 0;
        const auto add = [&](uint32_t key) {
            const uint32_t smaller = key < first ? key : first;
            first = larger_of(first, key);
            second = larger_of(second, smaller);
        };
        if (is_group)
            for (uint32_t i = part; i < arguments.group_size; i += share)
                add(kittens::order_key(
                    kittens::lds_read<float>(lds + (group * arguments.group_size + i) * 4)));
        for (uint32_t step = 1; step < share; step *= 2) {
            const int other = kittens::lane_id() ^ static_cast<int>(step);
            const uint32_t others_first = kittens::read_lane(first, other),
                           others_second = kittens::read_lane(second, other);
            add(others_first);
            add(others_second);
        }
        float score = kittens::value_of_order_key(first);
        if (arguments.bias && arguments.group_size > 1) score += kittens::value_of_order_key(second);
        // The key in the upper bits, and below it a tie-breaker that makes the first of equal groups the greatest.
        const uint64_t entry = static_cast<uint64_t>(kittens::order_key(score)) << 32 | (most_groups - group);
        if (is_group && part == 0) kittens::lds_write(entry, entries + group * 8);
    }
    kittens::compiler_fence();
    for (uint32_t group = Lanes::lane(); group < arguments.groups; group += lanes) {
        const uint64_t mine = kittens::lds_read<uint64_t>(entries + group * 8);
        uint32_t greater = 0;
        for (uint32_t other = 0; other < arguments.groups; ++other)
            greater += kittens::lds_read<uint64_t>(entries + other * 8) > mine;
        kittens::lds_write(greater < arguments.chosen_groups ? 1u : 0u, lds + group * 4);
    }
    kittens::compiler_fence();
}

}  // namespace hipkittens::router
