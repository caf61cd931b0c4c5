// torch/attention.h: torch.ops.hipkittens.attention_forward and attention_backward.
// SPDX-License-Identifier: MIT
#pragma once

#include "torch/tensor.h"

namespace hipkittens::torch_door {

// q (B, N, H, D), k and v (B, N_k, H_k, D) -> out (B, N, H, D) contiguous, lse (B, H, N) float32.
// A negative window side is unlimited.
inline constexpr const char* attention_forward_schema =
    "attention_forward(Tensor q, Tensor k, Tensor v, float scale, bool causal, int window_left, int "
    "window_right) -> "
    "(Tensor, Tensor)";

void attention_forward(StableIValue* stack, uint64_t argument_count, uint64_t result_count);

// The gradients of q, k and v, contiguous, from those of out and lse.
inline constexpr const char* attention_backward_schema =
    "attention_backward(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor "
    "lse, "
    "float scale, bool causal, int window_left, int window_right) -> (Tensor, Tensor, Tensor)";

void attention_backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count);

}  // namespace hipkittens::torch_door
