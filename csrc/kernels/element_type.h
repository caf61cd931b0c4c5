// kernels/element_type.h: what the elements of a tensor may be, as the host says it and a row of variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

namespace hipkittens {

// fp8, bf8: e4m3 and e5m2 as the target encodes them. fp4: two e2m1 in a byte; sizes and strides count bytes.
enum class ElementType : int32_t { bf16, f16, f32, fp8, bf8, i8, fp4, i32 };

constexpr int size_of(ElementType type) {
    if (type == ElementType::f32 || type == ElementType::i32) return 4;
    return type == ElementType::bf16 || type == ElementType::f16 ? 2 : 1;
}

// Of kinds whose rows differ in the element's type alone.
struct ElementConfig {
    ElementType element;
};

}  // namespace hipkittens
