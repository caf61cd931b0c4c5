// kernels/attention/plan_order.h: in which order workgroups take tiles, and their launch.
// SPDX-License-Identifier: MIT
#pragma once
#include "plan_problem.h"

namespace hipkittens::attention {

// sharing: heads whose tiles read the same rows of the other side, which an XCD's L2 then serves.
WorkgroupOrder order_of(const Problem& p, int64_t tiles, int64_t heads, int64_t sharing, int64_t splits,
                        int64_t threads);

// Tiles of queries become longer from the first to the last, those of keys shorter.
inline bool is_causal(const Problem& p, const Mask& mask) { return mask.left >= p.n_k && mask.right < p.n_k; }

// Under a causal mask: heads that share rows of the other side, and further ones until an XCD's workgroup slots are
// taken, or its L2 by those rows: `bytes` of each `sharing` heads, of which `all` divide into equal numbers taken together.
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
