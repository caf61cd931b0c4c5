// kernels/attention/kinds.h: the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../row.h"
#include "arguments.h"
#include "backward_arguments.h"
#include "backward_config.h"
#include "config.h"
#include "pointwise_arguments.h"
#include "quantized_arguments.h"

namespace hipkittens::attention {

template <ForwardConfig config>
struct ForwardKernel;
template <QuantizedConfig config>
struct QuantizedForward;
template <ElementConfig config>
struct CombineKernel;
template <BackwardConfig config>
struct BackwardKernel;
template <ElementConfig config>
struct DeltaKernel;
template <ElementConfig config>
struct ConvertKernel;
template <SinksConfig config>
struct SinksKernel;

namespace kinds {

struct forward : Kind<ForwardConfig, ForwardArguments, ForwardKernel> {};
// Combines the splits of the keys.
struct combine : Kind<ElementConfig, CombineArguments, CombineKernel> {};
struct backward : Kind<BackwardConfig, BackwardArguments, BackwardKernel> {};
// The same loops with pointwise weights instead of a softmax.
struct pointwise_forward : Kind<ForwardConfig, PointwiseForwardArguments, ForwardKernel> {};
struct pointwise_backward : Kind<BackwardConfig, PointwiseBackwardArguments, BackwardKernel> {};
// Quantized values instead of 16-bit elements.
struct quantized_forward : Kind<QuantizedConfig, QuantizedArguments, QuantizedForward> {};
// The per-query statistics that the gradient kernels need.
struct delta : Kind<ElementConfig, BackwardArguments, DeltaKernel> {};
// dQ from its accumulator, dK and dV from their split partials.
struct convert : Kind<ElementConfig, BackwardArguments, ConvertKernel> {};
// The gradients of sinks from the partial sums that delta stores.
struct sinks : Kind<SinksConfig, BackwardArguments, SinksKernel> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
    using enum Schedule;
    using enum QueryRows;
    using enum GradientTarget;
    using enum ScoreTerms;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::attention
