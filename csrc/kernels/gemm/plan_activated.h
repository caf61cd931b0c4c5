// kernels/gemm/plan_activated.h: from a linear layer with its activation or gate to a launch. Pure, as plan.h.
// SPDX-License-Identifier: MIT
#pragma once
#include "plan.h"

namespace hipkittens::gemm {

// What becomes of sums: a function of each, or with gates a function of one times another, its partner, which is `pair_stride` elements
// behind in B and `bias_pair_stride` in the bias, whose gates are `bias_stride` apart.
struct Gate {
    bool gated = false;
    float alpha = 1;
    int64_t pair_stride = 0, bias_stride = 1, bias_pair_stride = 0;
    float limit = 0;
    Matrix sums;  // where they are kept: m rows of n, or of n gates and then n partners; or without data
};

// From all of B to its gates: rows of B, and elements of the bias, are n gates and then n partners, or both alternately. Of a problem
// with a gate.
template <class GatedProblem>
void set_partners(GatedProblem& problem, bool interleaved) {
    const int64_t row = problem.b.leading_stride;
    problem.gated = true;
    problem.b.leading_stride = interleaved ? 2 * row : row;
    problem.pair_stride = interleaved ? row : problem.n * row;
    problem.bias_stride = interleaved ? 2 : 1;
    problem.bias_pair_stride = interleaved ? 1 : problem.n;
}

// C[m, n] = activation(A[m, k] B[k, n] + bias[n]); with gates b describes their columns, and n is their number. 16-bit operands without
// scales.
struct ActivatedProblem : Problem, Gate {};

// A row that computes them.
struct ActivatedVariant : GemmVariant {
    bool gated = false;
};

bool suits(const ActivatedVariant& variant, const ActivatedProblem& problem);

// Do partners lie where the gates' window reaches, and can a kernel of this configuration read them?
bool reaches_partners(const GemmConfig& config, const Problem& problem, const Gate& gate);

// The gates' part of arguments.
void set_gate(GatedGemmArguments& arguments, const Problem& problem, const Gate& gate);

// Launches, one for each part of very many batches. Throws std::invalid_argument with what is wrong and what would be right.
Plan plan(const ActivatedProblem& problem);

// The launches of one row of variants.def.
Plan plan_variant(const ActivatedProblem& problem, const ActivatedVariant& variant);

}  // namespace hipkittens::gemm
