// kernels/gemm/kinds.h: the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../row.h"
#include "arguments.h"
#include "config.h"

namespace hipkittens::gemm {

template <GemmConfig config>
struct GemmKernel;
template <NoConfig config>
struct ReduceKernel;

namespace kinds {

struct gemm : Kind<GemmConfig, GemmArguments, GemmKernel> {};
// Sums the partial products of a split K.
struct reduce : Kind<NoConfig, ReduceArguments, ReduceKernel> {};

}  // namespace kinds

struct Variants {
    template <class Visit>
    static constexpr void each(const Visit& visit) {
        using enum Orientation;
        using enum ElementType;
        using enum RowStart;
        using enum Schedule;
        using enum LoadOrder;
#define ROW(kind, name, targets, ...) visit(Row<kinds::kind>{#name, Targets::targets, {__VA_ARGS__}});
#include "variants.def"
#undef ROW
    }
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, Variants>;

}  // namespace hipkittens::gemm
