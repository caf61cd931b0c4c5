// kernels/quantize/usual_codes.h: excludes cases that kernels with few rows of each kind leave to other kernels.
// SPDX-License-Identifier: MIT
#pragma once
#include "../quantization/codes.h"

namespace hipkittens::quantize {

// 6-bit values and other_rounding, for which the host selects other kernels, are not compiled: code that is jumped over costs fetches.
KITTENS_DEVICE void assume_usual_codes(const QuantizeArguments& arguments) {
    if (is_6_bits(arguments.code) || arguments.other_rounding) __builtin_unreachable();
}

}  // namespace hipkittens::quantize
