// kernels/gemm/plan_codes.h: from a product whose results are 8-bit floats to a launch. Pure, as plan.h.
// SPDX-License-Identifier: MIT
#pragma once
#include "plan.h"

namespace hipkittens::gemm {

// The output is fp8: what a product of fp8 with scales of rows and columns would be, times *c_scale if there is one. Rows of operands are
// whole dwords.
struct CodesProblem : Problem {
    const float* c_scale = nullptr;
};

// K is never split: there is no reduction to codes. Throws std::invalid_argument with what is wrong and what would be right.
Plan plan(const CodesProblem& problem);

// The launches of one row of variants.def.
Plan plan_codes_variant(const CodesProblem& problem, const GemmVariant& variant);

}  // namespace hipkittens::gemm
