// kernels/quantize/token_rows.h: the rows of a token's choices among those of all experts.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/intrinsics.h"
#include "../../tiles/scan_intrinsics.h"
#include "kinds.h"

namespace hipkittens::quantize {

// Visits the value of each of some lanes, with the value the same for all lanes.
template <class Visit>
KITTENS_DEVICE void visit_lanes(uint64_t lanes, uint32_t values, const Visit& visit) {
#pragma clang loop unroll(disable)
    for (; lanes; lanes &= lanes - 1) visit(kittens::value_of_lane(values, __builtin_ctzll(lanes)));
}

// For the token of a workgroup, one choice per lane. Loads stay in flight until their values are requested.
class TokenRows {
    uint32_t place_, entry_, limit_;
    bool is_choice_;

  public:
    // The index of the lane's choice among all choices. It may be a row that no choice has, which then belongs to no token.
    uint32_t pair;

    KITTENS_DEVICE TokenRows(const TokenQuantizeArguments& arguments, uint32_t token)
        : limit_(arguments.entry_limit),
          is_choice_(static_cast<uint32_t>(kittens::lane_id()) < arguments.choices.value) {
        pair = token * arguments.choices.value + kittens::lane_id();
        const auto load = [&](const int32_t* from) {  // 0 past the last one
            const kittens::buffer all = {reinterpret_cast<const char*>(from), limit_ * 4};
            return kittens::buffer_load<uint32_t>(all, pair * 4);
        };
        place_ = load(arguments.places);
        entry_ = load(arguments.entries);
    }
    KITTENS_DEVICE uint32_t place() const { return place_; }
    KITTENS_DEVICE bool has_place() const { return is_choice_ && place_ < limit_; }
    // Whether row `pair` has no token.
    KITTENS_DEVICE bool is_empty() const { return is_choice_ && entry_ >= limit_; }
};

}  // namespace hipkittens::quantize
