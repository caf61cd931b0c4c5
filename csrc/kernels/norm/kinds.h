// kernels/norm/kinds.h: the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../row.h"
#include "config.h"

namespace hipkittens::norm {

template <RowConfig config>
struct ForwardKernel;
template <RowConfig config>
struct LayerKernel;
template <RowConfig config>
struct RmsKernel;
template <RowConfig config>
struct OddLayerKernel;
template <RowConfig config>
struct OddRmsKernel;
template <FusedConfig config>
struct FusedKernel;
template <RowConfig config>
struct BackwardKernel;
template <ElementConfig config>
struct ColumnsKernel;
template <NoConfig config>
struct ReduceKernel;

namespace kinds {

struct forward : Kind<RowConfig, ForwardArguments, ForwardKernel> {};
// The common case of layer_norm and rms_norm.
struct layer : Kind<RowConfig, PlainArguments, LayerKernel> {};
struct rms : Kind<RowConfig, PlainArguments, RmsKernel> {};
// The same for rows that are not whole vectors, or are not dword-aligned.
struct odd_layer : Kind<RowConfig, PlainArguments, OddLayerKernel> {};
struct odd_rms : Kind<RowConfig, PlainArguments, OddRmsKernel> {};
// With everything that may precede and follow a norm.
struct fused : Kind<FusedConfig, FusedPair, FusedKernel> {};
struct backward : Kind<RowConfig, BackwardArguments, BackwardKernel> {};
// Partial sums of the gradients of weight and bias, for rows too long for `backward` to compute them.
struct columns : Kind<ElementConfig, BackwardArguments, ColumnsKernel> {};
// Adds the partial sums.
struct reduce : Kind<NoConfig, ReduceArguments, ReduceKernel> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::norm
