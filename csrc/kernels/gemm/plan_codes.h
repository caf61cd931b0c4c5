// kernels/gemm/plan_codes.h: plans the launch of a product with results in 8-bit floats. Pure, like plan.h.
// SPDX-License-Identifier: MIT
#pragma once
#include "plan.h"

namespace hipkittens::gemm {

// The output is fp8: the result of a product of fp8 with scales of rows and columns, times *c_scale if it is set. Rows of operands are
// whole dwords.
struct CodesProblem : Problem {
    const float* c_scale = nullptr;
};

// K is never split: there is no reduction with quantized results. Throws std::invalid_argument, stating what is wrong and what is expected.
Plan plan(const CodesProblem& problem);

// The launches of one row of variants.def.
Plan plan_codes_variant(const CodesProblem& problem, const GemmVariant& variant);

}  // namespace hipkittens::gemm
