// kernels/attention/plan_order.cpp: the order in which workgroups take tiles.
// SPDX-License-Identifier: MIT
#include "plan_order.h"

#include <algorithm>

namespace hipkittens::attention {

WorkgroupOrder order_of(const Problem& p, int64_t tiles, int64_t heads, int64_t sharing, int64_t splits,
                        int64_t threads) {
    const int64_t workgroups = tiles * heads * p.batch * splits;
    // HIP counts the threads of a grid dimension in 32 bits.
    if (workgroups * threads > 0xffffffffll) refuse("the grid has 2^32 threads or more");
    WorkgroupOrder order{};
    order.tiles = static_cast<int32_t>(tiles);
    order.heads = static_cast<int32_t>(heads);
    order.batch = static_cast<int32_t>(p.batch);
    order.splits = static_cast<int32_t>(splits);
    order.together = 1;
    order.xcds = static_cast<uint32_t>(p.device.xcds);
    order.chunk = static_cast<uint32_t>(
        std::clamp<int64_t>(tiles * sharing, 1, std::max<int64_t>(1, workgroups / p.device.xcds)));
    return order;
}

void take_longest_first(const Problem& p, int64_t all, int64_t sharing, int64_t bytes, int64_t slots_per_unit,
                        WorkgroupOrder& order) {
    constexpr int64_t l2_bytes = 4 << 20;
    const int64_t slots = int64_t{p.device.compute_units} / p.device.xcds * slots_per_unit;
    const int64_t workgroups = static_cast<int64_t>(order.tiles) * order.heads * order.batch * order.splits;
    int64_t together = sharing;
    for (int64_t heads = 2 * sharing; heads <= all; heads += sharing) {
        if (together * order.tiles >= slots || heads * order.tiles * order.xcds > workgroups ||
            heads / sharing * bytes > l2_bytes)
            break;
        if (all % heads == 0) together = heads;
    }
    order.together = static_cast<int32_t>(together);
    order.chunk = static_cast<uint32_t>(
        std::clamp<int64_t>(order.tiles * together, 1, std::max<int64_t>(1, workgroups / order.xcds)));
}

}  // namespace hipkittens::attention
