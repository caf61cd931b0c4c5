// kernels/gemm/plan_grouped.h: plans the launch of one product per group. Pure, like plan.h.
// SPDX-License-Identifier: MIT
#pragma once
#include "plan_activated.h"

namespace hipkittens::gemm {

// Products of `groups` groups: m, n and k, where the grouped dimension is the total over all groups; batch strides are between
// the matrices of consecutive groups, and 0 for a matrix that all groups share. Groups of rows may have scales, those of A for
// all rows together and those of B with a batch stride; or gates.
struct GroupedProblem : Problem, Gate {
    int64_t groups = 0;
    Grouping grouping = Grouping::rows;
    const int32_t* ends = nullptr;  // on the device
    int64_t bias_group_stride = 0;
    // Row r of A is that of token entries[r] / choices, of `tokens`; null: row r. Of products with scales or gates.
    const int32_t* entries = nullptr;  // on the device
    int64_t choices = 1, tokens = 0;
};

// A row of any kind that computes products of groups.
struct GroupedVariant : GemmVariant {
    bool gated = false;
};

// Orientations whose rows begin and end where a group does: for these there are kernels that load 16 bytes at a time.
bool is_grouped_orientation(Grouping grouping, bool a_is_transposed, bool b_is_transposed);

bool suits(const GroupedVariant& variant, const GroupedProblem& problem);

// Throws std::invalid_argument, stating what is wrong and what is expected.
hipkittens::Launch plan(const GroupedProblem& problem);

// The launch of one row of variants.def.
hipkittens::Launch launch_variant(const GroupedProblem& problem, const GroupedVariant& variant);

}  // namespace hipkittens::gemm
