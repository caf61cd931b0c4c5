// kernels/element_type.h: what the elements of a tensor may be, as the host says it and a row of variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

namespace hipkittens {

enum class ElementType : int32_t { bf16, f16, f32 };

constexpr int size_of(ElementType type) { return type == ElementType::f32 ? 4 : 2; }

// Of kinds whose rows differ in the element's type alone.
struct ElementConfig {
    ElementType element;
};

}  // namespace hipkittens
