// torch/gemm.h: torch.ops.hipkittens.gemm.
// SPDX-License-Identifier: MIT
#pragma once

#include "torch/tensor.h"

namespace hipkittens::torch_door {

inline constexpr const char* gemm_schema =
    "gemm(Tensor a, Tensor b, Tensor? bias, ScalarType out_dtype, bool deterministic) -> Tensor";

void gemm(StableIValue* stack, uint64_t argument_count, uint64_t result_count);

}  // namespace hipkittens::torch_door
