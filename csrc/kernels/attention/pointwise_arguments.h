// kernels/attention/pointwise_arguments.h: the arguments of attention without a softmax, by value.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_arguments.h"
#include "history_mask.h"

namespace hipkittens::attention {

// For weights silu(scale q k) / length (Zhai et al. 2024, "Actions Speak Louder than Words": HSTU).
struct PointwiseArguments {
    const int32_t* targets;             // the number of target rows of each sequence; null: none
    int32_t context, distance, causal;  // as in HistoryMask
    float scale, length;
};

struct PointwiseForwardArguments : ForwardArguments {
    PointwiseArguments pointwise;
};
// `scale` is that of dQ and dK: the scale of the scores divided by the length. There are no statistics, sinks or accumulators.
struct PointwiseBackwardArguments : BackwardArguments {
    PointwiseArguments pointwise;
};

constexpr SequenceOf<HistoryMask> sequence_of(int batch, const Mask& mask, const PackedSequences& packed,
                                              const PointwiseArguments& pointwise) {
    const Sequence rows = sequence_of(batch, mask, packed);
    const int32_t length = rows.mask.n_q;
    int32_t targets = pointwise.targets ? pointwise.targets[batch] : 0;
    targets = targets < 0 ? 0 : targets > length ? length : targets;
    return {rows.batch,
            rows.first_q,
            rows.first_k,
            {length, length, pointwise.context, length - targets, pointwise.distance, pointwise.causal}};
}
constexpr auto sequence_of(int batch, const PointwiseForwardArguments& arguments) {
    return sequence_of(batch, arguments.mask, arguments.packed, arguments.pointwise);
}
constexpr auto sequence_of(int batch, const PointwiseBackwardArguments& arguments) {
    return sequence_of(batch, arguments.mask, arguments.packed, arguments.pointwise);
}

}  // namespace hipkittens::attention
