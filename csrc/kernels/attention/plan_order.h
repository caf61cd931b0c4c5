// kernels/attention/plan_order.h: the order in which workgroups take tiles, and their launch.
// SPDX-License-Identifier: MIT
#pragma once
#include "plan_problem.h"

namespace hipkittens::attention {

// sharing: number of heads whose tiles read the same rows of the other side, which are then served by the L2 of one XCD.
WorkgroupOrder order_of(const Problem& p, int64_t tiles, int64_t heads, int64_t sharing, int64_t splits,
                        int64_t threads);

// Tiles of queries grow longer from the first to the last, tiles of keys shorter.
inline bool is_causal(const Problem& p, const Mask& mask) { return mask.left >= p.n_k && mask.right < p.n_k; }

// Under a causal mask: takes heads that share rows of the other side together, and further ones until the workgroup slots of an XCD
// are filled, or its L2 by those rows: `bytes` for every `sharing` heads. `all` heads divide into equal numbers taken together.
void take_longest_first(const Problem& p, int64_t all, int64_t sharing, int64_t bytes, int64_t slots_per_unit,
                        WorkgroupOrder& order);

template <class Arguments>
Launch launch_of(const char* variant, const Problem& p, const WorkgroupOrder& order, int threads,
                 const Arguments& arguments) {
    const auto workgroups = static_cast<uint32_t>(order.tiles) * order.heads * order.batch * order.splits;
    return hipkittens::launch_of("attention", variant, p.device.target, {workgroups, 1, 1}, threads,
                                 arguments);
}

}  // namespace hipkittens::attention
