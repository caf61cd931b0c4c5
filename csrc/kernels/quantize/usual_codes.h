// kernels/quantize/usual_codes.h: what kernels with few rows of each kind leave to the others.
// SPDX-License-Identifier: MIT
#pragma once
#include "../quantization/codes.h"

namespace hipkittens::quantize {

// Codes of 6 bits and other_rounding, for which the host has other kernels, are not compiled: code that is jumped over costs fetches.
KITTENS_DEVICE void assume_usual_codes(const QuantizeArguments& arguments) {
    if (is_6_bits(arguments.code) || arguments.other_rounding) __builtin_unreachable();
}

}  // namespace hipkittens::quantize
