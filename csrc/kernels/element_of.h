// kernels/element_of.h: the type that a kernel calculates with for an ElementType, which the host names.
// SPDX-License-Identifier: MIT
#pragma once
#include "../tiles/element.h"
#include "element_type.h"

namespace hipkittens {

template <ElementType type>
struct element_of {
    using value = float;
};
template <>
struct element_of<ElementType::bf16> {
    using value = kittens::bf16;
};
template <>
struct element_of<ElementType::f16> {
    using value = kittens::half;
};

}  // namespace hipkittens
