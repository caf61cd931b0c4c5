// kernels/element_of.h: the type with which a kernel computes for an ElementType named by the host.
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
template <>
struct element_of<ElementType::fp8> {
    using value = kittens::fp8_e4m3;
};
template <>
struct element_of<ElementType::bf8> {
    using value = kittens::bf8_e5m2;
};
template <>
struct element_of<ElementType::i8> {
    using value = kittens::int8;
};
template <>
struct element_of<ElementType::fp4> {
    using value = kittens::fp4_pair;
};
template <>
struct element_of<ElementType::fp6> {
    using value = kittens::fp6_e2m3;
};
template <>
struct element_of<ElementType::bf6> {
    using value = kittens::bf6_e3m2;
};

}  // namespace hipkittens
