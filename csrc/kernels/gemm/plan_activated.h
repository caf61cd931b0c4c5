// kernels/gemm/plan_activated.h: plans the launch of a linear layer with an activation or gate. Pure, like plan.h.
// SPDX-License-Identifier: MIT
#pragma once
#include "plan.h"

namespace hipkittens::gemm {

// What is applied to the sums: a function of each or, with gates, a function of one times another, its partner. The partner is
// `pair_stride` elements after the gate in B and `bias_pair_stride` in the bias, whose gates are `bias_stride` apart.
struct Gate {
    bool gated = false;
    float alpha = 1;
    int64_t pair_stride = 0, bias_stride = 1, bias_pair_stride = 0;
    float limit = 0;
    Matrix sums;  // where to store them: m rows of n, or of n gates followed by n partners; or without data
};

// Changes b from all of B to its gates. Rows of B, and elements of the bias, are n gates followed by n partners, or the two
// interleaved. For a problem with a gate.
template <class GatedProblem>
void set_partners(GatedProblem& problem, bool interleaved) {
    const int64_t row = problem.b.leading_stride;
    problem.gated = true;
    problem.b.leading_stride = interleaved ? 2 * row : row;
    problem.pair_stride = interleaved ? row : problem.n * row;
    problem.bias_stride = interleaved ? 2 : 1;
    problem.bias_pair_stride = interleaved ? 1 : problem.n;
}

// C[m, n] = activation(A[m, k] B[k, n] + bias[n]); with gates, b describes their columns, and n is their number. 16-bit operands
// without scales.
struct ActivatedProblem : Problem, Gate {};

// A row that computes them.
struct ActivatedVariant : GemmVariant {
    bool gated = false;
};

bool suits(const ActivatedVariant& variant, const ActivatedProblem& problem);

// Whether partners are within reach of the gates' window, and a kernel of this configuration can read them.
bool reaches_partners(const GemmConfig& config, const Problem& problem, const Gate& gate);

// Sets the part of the arguments that belongs to the gates.
void set_gate(GatedGemmArguments& arguments, const Problem& problem, const Gate& gate);

// The launches; more than one only for very large batches. Throws std::invalid_argument, stating what is wrong and what is expected.
Plan plan(const ActivatedProblem& problem);

// The launches of one row of variants.def.
Plan plan_variant(const ActivatedProblem& problem, const ActivatedVariant& variant);

}  // namespace hipkittens::gemm
