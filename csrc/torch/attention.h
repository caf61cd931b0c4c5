// torch/attention.h: torch.ops.hipkittens.attention_forward and attention_backward.
// SPDX-License-Identifier: MIT
#pragma once

#include "torch/tensor.h"

namespace hipkittens::torch_door {

// q (B, N, H, D), k and v (B, N_k, H_k, D) -> out (B, N, H, D) contiguous, lse (B, H, N) float32.
// A negative window side is unlimited. seed: two int64 on q's device, given exactly when dropout_p > 0.
inline constexpr const char* attention_forward_schema =
    "attention_forward(Tensor q, Tensor k, Tensor v, float scale, bool causal, int window_left, int "
    "window_right, float dropout_p=0., Tensor? seed=None) -> (Tensor, Tensor)";

// The gradients of q, k and v, contiguous, from those of out and lse.
inline constexpr const char* attention_backward_schema =
    "attention_backward(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor "
    "lse, float scale, bool causal, int window_left, int window_right, float dropout_p=0., Tensor? "
    "seed=None) -> "
    "(Tensor, Tensor, Tensor)";

// Packed sequences: q (T, H, D), k and v (T_k, H_k, D) -> out (T, H, D), lse (H, T). Sequence b has rows
// cu_seqlens[b] .. cu_seqlens[b + 1] - 1, int32 on q's device, at most max_seqlen of them.
inline constexpr const char* attention_varlen_forward_schema =
    "attention_varlen_forward(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
    "SymInt max_seqlen_q, SymInt max_seqlen_k, float scale, bool causal, int window_left, int window_right, "
    "float dropout_p=0., Tensor? seed=None) -> (Tensor, Tensor)";
inline constexpr const char* attention_varlen_backward_schema =
    "attention_varlen_backward(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, "
    "Tensor lse, Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, "
    "float scale, bool causal, int window_left, int window_right, float dropout_p=0., Tensor? seed=None) -> "
    "(Tensor, Tensor, Tensor)";

void attention_forward(StableIValue* stack, uint64_t argument_count, uint64_t result_count);
void attention_backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count);
void attention_varlen_forward(StableIValue* stack, uint64_t argument_count, uint64_t result_count);
void attention_varlen_backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count);

}  // namespace hipkittens::torch_door
