// kernels/rotary/kinds.h: the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../row.h"
#include "config.h"

namespace hipkittens::rotary {

template <ElementConfig config>
struct RotaryKernel;
template <PlainConfig config>
struct PlainKernel;
template <ElementConfig config>
struct QkvKernel;
template <ElementConfig config>
struct QkvBackwardKernel;
template <ElementConfig config>
struct JoinedKernel;

namespace kinds {

struct rotary : Kind<ElementConfig, RotaryArguments, RotaryKernel> {};
// The common case.
struct plain : Kind<PlainConfig, PlainArguments, PlainKernel> {};
// Packed heads, and their gradients.
struct qkv : Kind<ElementConfig, QkvArguments, QkvKernel> {};
struct qkv_backward : Kind<ElementConfig, QkvBackwardArguments, QkvBackwardKernel> {};
// Heads with two parts, and heads that are separate tensors, with a cache.
struct joined : Kind<ElementConfig, JoinedArguments, JoinedKernel> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::rotary
