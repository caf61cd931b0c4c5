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

namespace kinds {

struct rotary : Kind<ElementConfig, RotaryArguments, RotaryKernel> {};
// What most calls ask for.
struct plain : Kind<PlainConfig, PlainArguments, PlainKernel> {};

}  // namespace kinds

struct Variants {
    template <class Visit>
    static constexpr void each(const Visit& visit) {
        using enum ElementType;
#define ROW(kind, name, targets, ...) visit(Row<kinds::kind>{#name, Targets::targets, {__VA_ARGS__}});
#include "variants.def"
#undef ROW
    }
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, Variants>;

}  // namespace hipkittens::rotary
