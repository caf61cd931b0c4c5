// kernels/gemm/kinds.h: the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../row.h"
#include "arguments.h"
#include "config.h"

namespace hipkittens::gemm {

template <GemmConfig config>
struct GemmKernel;
template <GemmConfig config>
struct CodesKernel;
template <GemmConfig config>
struct FusedKernel;
template <GemmConfig config>
struct AddingKernel;
template <GemmConfig config>
struct ActivatedKernel;
template <GemmConfig config>
struct GatedKernel;
template <GemmConfig config>
struct GroupedKernel;
template <GemmConfig config>
struct GatedGroupedKernel;
template <NoConfig config>
struct ReduceKernel;
template <SumConfig config>
struct ScaledReduceKernel;

namespace kinds {

struct gemm : Kind<GemmConfig, GemmArguments, GemmKernel> {};
struct scaled : Kind<GemmConfig, ScaledGemmArguments, GemmKernel> {};
// The same with results in 8-bit floats.
struct codes : Kind<GemmConfig, CodesGemmArguments, CodesKernel> {};
// With a multiplication and addition, or heads that are stored apart.
struct fused : Kind<GemmConfig, FusedGemmArguments, FusedKernel> {};
// Sums that are added to C.
struct adding : Kind<GemmConfig, GemmArguments, AddingKernel> {};
// A function of each sum; and a function of a gate times another sum.
struct activated : Kind<GemmConfig, ActivatedGemmArguments, ActivatedKernel> {};
struct gated : Kind<GemmConfig, GatedGemmArguments, GatedKernel> {};
// One product per group of rows or of K.
struct grouped : Kind<GemmConfig, GroupedGemmArguments, GroupedKernel> {};
struct scaled_grouped : Kind<GemmConfig, ScaledGroupedGemmArguments, GroupedKernel> {};
struct gated_grouped : Kind<GemmConfig, GatedGroupedGemmArguments, GatedGroupedKernel> {};
// Adds the partial sums of a split K.
struct reduce : Kind<NoConfig, ReduceArguments, ReduceKernel> {};
struct scaled_reduce : Kind<SumConfig, ScaledReduceArguments, ScaledReduceKernel> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum Orientation;
    using enum ElementType;
    using enum Scales;
    using enum RowStart;
    using enum Schedule;
    using enum LoadOrder;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::gemm
