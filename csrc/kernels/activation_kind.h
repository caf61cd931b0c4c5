// kernels/activation_kind.h: the activations, as named by host and kernels.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

namespace hipkittens::activation {

// silu(x) = x / (1 + e^-(alpha x)); gelu_tanh(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)));
// gelu(x) = x / 2 (1 + erf(x / sqrt 2)). swiglu is gpt-oss' gate: silu(gate) (other + 1).
enum class Activation : int32_t { silu, gelu_tanh, gelu, relu, tanh, swiglu };

}  // namespace hipkittens::activation
