// kernels/gemm/plan_activated.h: from a linear layer with its activation or gate to a launch. Pure, as plan.h.
// SPDX-License-Identifier: MIT
#pragma once
#include "plan.h"

namespace hipkittens::gemm {

// C[m, n] = activation(A[m, k] B[k, n] + bias[n]); or with gates C = activation(G) * U, where G and U are products with columns of
// their own: b describes those of G, and each partner is `pair_stride` elements behind its gate in B and `bias_pair_stride` in the
// bias, whose gates are `bias_stride` apart. 16-bit operands without scales.
struct ActivatedProblem : Problem {
    bool gated = false;
    float alpha = 1;
    int64_t pair_stride = 0, bias_stride = 1, bias_pair_stride = 0;
    float limit = 0;
    Matrix sums;  // where they are kept: m rows of n, or of n gates and then n partners; or without data
};

// A row that computes them.
struct ActivatedVariant : GemmVariant {
    bool gated = false;
};

bool suits(const ActivatedVariant& variant, const ActivatedProblem& problem);

// Launches, one for each part of very many batches. Throws std::invalid_argument with what is wrong and what would be right.
Plan plan(const ActivatedProblem& problem);

// The launches of one row of variants.def.
Plan plan_variant(const ActivatedProblem& problem, const ActivatedVariant& variant);

}  // namespace hipkittens::gemm
