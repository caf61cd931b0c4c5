// torch/norm.h: torch.ops.hipkittens.layer_norm, rms_norm and norm_backward.
// SPDX-License-Identifier: MIT
#pragma once

#include "torch/tensor.h"

namespace hipkittens::torch_door {

// seed: two int64 on x's device, given exactly when dropout_p > 0. Results that nobody needs are empty: sum without
// residual and dropout, mean and rstd unless asked for, which the gradient otherwise takes again, dresidual without dropout,
// dweight and dbias unless asked for.
inline constexpr const char* layer_norm_schema =
    "layer_norm(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, float eps, float dropout_p, "
    "Tensor? seed, bool need_statistics=True) "
    "-> (Tensor y, Tensor sum, Tensor mean, Tensor rstd)";
inline constexpr const char* rms_norm_schema =
    "rms_norm(Tensor x, Tensor? residual, Tensor? weight, float eps, bool need_statistics=True) "
    "-> (Tensor y, Tensor sum, Tensor rstd)";
inline constexpr const char* norm_backward_schema =
    "norm_backward(Tensor dy, Tensor? dsum, Tensor z, Tensor? weight, Tensor? mean, Tensor rstd, float "
    "dropout_p, "
    "Tensor? seed, bool need_weight, bool need_bias) "
    "-> (Tensor dx, Tensor dresidual, Tensor dweight, Tensor dbias)";

void layer_norm(StableIValue* stack, uint64_t argument_count, uint64_t result_count);
void rms_norm(StableIValue* stack, uint64_t argument_count, uint64_t result_count);
void norm_backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count);

}  // namespace hipkittens::torch_door
