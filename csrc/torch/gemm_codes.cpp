// torch/gemm_codes.cpp: formats of quantized values by number, and how many values a row of bytes holds.
// SPDX-License-Identifier: MIT
#include "torch/gemm_codes.h"

#include <iterator>
#include <string>

#include "torch/gemm_operand.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {

ElementType code_format(const char* operation, const char* name, int64_t number) {
    constexpr ElementType formats[] = {ElementType::fp8, ElementType::bf8, ElementType::i8,  ElementType::fp4,
                                       ElementType::fp6, ElementType::bf6, ElementType::bf16};
    if (number < 0 || number >= static_cast<int64_t>(std::size(formats)))
        fail(std::string(operation) + ": " + name + " is " + std::to_string(number) +
             "; allowed: 0 (fp8), 1 (bf8), 2 (int8), 3 (fp4), 4 (fp6), 5 (bf6), 6 (bf16)");
    return formats[number];
}

int64_t codes_in(const char* operation, const char* name, ElementType type, int64_t bytes) {
    if (is_6_bits(type)) {
        if (bytes % 96 != 0)
            fail(std::string(operation) + ": rows of " + name + " have " + std::to_string(bytes) +
                 " bytes; 128 codes of 6 bits have 96");
        return bytes / 96 * 128;
    }
    return type == ElementType::fp4 ? bytes * 2 : bytes / size_of(type);
}

void check_mx_scale(const char* operation, const char* name, const Tensor& scale, int64_t wanted) {
    if (scale.dtype_number() != aoti_torch_dtype_uint8() || !scale.is_contiguous() ||
        scale.element_count() < wanted)
        fail(std::string(operation) + ": " + name + " needs at least " + std::to_string(wanted) +
             " contiguous elements of uint8; its shape is " + shape_text(scale.sizes()));
}

}  // namespace hipkittens::torch_binding
