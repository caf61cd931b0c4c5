// kernels/gemm/plan_fused.h: plans the launch of a product with what follows it. Pure, like plan.h.
// SPDX-License-Identifier: MIT
#pragma once
#include "plan.h"

namespace hipkittens::gemm {

// Heads of N columns: the first `first` of each are stored in c, [m][heads][first + joined_columns], before those of `joined`,
// [m][heads][joined_columns]; the others in `rest`, [m][heads][columns - first]. c and rest are dense.
struct HeadsOfColumns {
    int64_t columns = 0, first = 0, joined_columns = 0;
    const void* joined = nullptr;
    int64_t joined_row_stride = 0, joined_head_stride = 0;  // elements; features have unit stride
    void* rest = nullptr;
};

// A product of quantized operands and a multiplication and addition of its results, or heads of them that are stored apart. Rows of
// operands are whole dwords.
struct FusedProblem : Problem {
    Multiplies multiplies = Multiplies::nothing;
    TermArgument factor{}, addend{};  // `whole` is set by the plan
    HeadsOfColumns heads;             // without columns: C is not split
};

// K is never split. Throws std::invalid_argument, stating what is wrong and what is expected.
Plan plan(const FusedProblem& problem);

// The rows of variants.def, and the launches of one of them.
std::span<const GemmVariant> fused_variants();
Plan plan_fused_variant(const FusedProblem& problem, const GemmVariant& variant);

}  // namespace hipkittens::gemm
