// kernels/gemm/plan_grouped.h: from a product for each group to a launch. Pure, as plan.h.
// SPDX-License-Identifier: MIT
#pragma once
#include "plan_activated.h"

namespace hipkittens::gemm {

// Products of `groups` groups: m, n and k, of which the dimension that is grouped is that of all groups together; batch strides
// lead from a group's matrix to the next, and are 0 of a matrix that all groups share. Groups of rows may have scales: those of A
// for all rows together, those of B with a batch stride; or gates.
struct GroupedProblem : Problem, Gate {
    int64_t groups = 0;
    Grouping grouping = Grouping::rows;
    const int32_t* ends = nullptr;  // on the device
    int64_t bias_group_stride = 0;
    // Row r of A is that of token entries[r] / choices, of `tokens`; null: row r. Of products with scales.
    const int32_t* entries = nullptr;  // on the device
    int64_t choices = 1, tokens = 0;
};

// A row that computes products of groups, of whichever kind.
struct GroupedVariant : GemmVariant {
    bool gated = false;
};

// Orientations that rows begin and end in where a group does: of these there are kernels that load 16 bytes at a time.
bool is_grouped_orientation(Grouping grouping, bool a_is_transposed, bool b_is_transposed);

bool suits(const GroupedVariant& variant, const GroupedProblem& problem);

// Throws std::invalid_argument with what is wrong and what would be right.
hipkittens::Launch plan(const GroupedProblem& problem);

// The launch of one row of variants.def.
hipkittens::Launch launch_variant(const GroupedProblem& problem, const GroupedVariant& variant);

}  // namespace hipkittens::gemm
