// torch/rotary.h: torch.ops.hipkittens.rotary, rotary_qk, and both in place.
// SPDX-License-Identifier: MIT
#pragma once

#include "torch/tensor.h"

namespace hipkittens::torch_door {

// x, q, k: 4 dimensions, (batch, tokens, heads, features), or (batch, heads, tokens, features) with heads_first.
// cos, sin: (positions, rotated features / 2). positions: int32 or int64, (batch, tokens).
inline constexpr const char* rotary_schema =
    "rotary(Tensor x, Tensor cos, Tensor sin, Tensor? positions, SymInt offset, bool interleaved, bool "
    "heads_first, "
    "bool inverse) -> Tensor";
inline constexpr const char* rotary_qk_schema =
    "rotary_qk(Tensor q, Tensor k, Tensor cos, Tensor sin, Tensor? positions, SymInt offset, bool "
    "interleaved, "
    "bool heads_first, bool inverse) -> (Tensor, Tensor)";
inline constexpr const char* rotary_in_place_schema =
    "rotary_(Tensor(a!) x, Tensor cos, Tensor sin, Tensor? positions, SymInt offset, bool interleaved, "
    "bool heads_first, bool inverse) -> ()";
inline constexpr const char* rotary_qk_in_place_schema =
    "rotary_qk_(Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin, Tensor? positions, SymInt offset, "
    "bool interleaved, bool heads_first, bool inverse) -> ()";

void rotary(StableIValue* stack, uint64_t argument_count, uint64_t result_count);
void rotary_qk(StableIValue* stack, uint64_t argument_count, uint64_t result_count);
void rotary_in_place(StableIValue* stack, uint64_t argument_count, uint64_t result_count);
void rotary_qk_in_place(StableIValue* stack, uint64_t argument_count, uint64_t result_count);

}  // namespace hipkittens::torch_door
