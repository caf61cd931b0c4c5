// kernels/loss/kinds.h: the arguments of cross entropy, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::loss {

// With x = logits, or softcap tanh(logits / softcap), target t and V columns:
//   lse = log sum_j e^x_j
//   loss = (1 - label_smoothing) (lse - x_t) + label_smoothing (lse - sum_j x_j / V) + z_loss lse^2
//   entropy = lse - sum_j p_j x_j with p_j = e^(x_j - lse)
// For a row whose target is ignore_index, all of these and the gradient are 0.
struct CrossEntropyArguments {
    StridedRows logits;
    const int64_t* target;
    // Per row. Without `loss`, the others are read instead of computed.
    float* loss;
    float* maximum;  // of x
    float* sum;      // of e^(x_j - maximum): storing lse itself would lose bits of every e^(x_j - lse)
    float* entropy;  // null: not needed
    // The gradient of the logits, with contiguous rows; may overwrite the logits. null: not needed.
    void* gradient;
    const float* dloss;     // for row r at r * dloss_step
    const float* dentropy;  // null: zeros
    int64_t ignore_index;
    RowCounts rows;
    uint32_t columns;
    uint32_t
        classes;  // V: for a gradient, the columns may be a subset, and target counts from the first of these
    uint32_t wide;  // rows are whole chunks of 8 elements and 4-byte aligned
    uint32_t dloss_step, dentropy_step;
    float label_smoothing, z_loss;
    float softcap;  // 0: none
    uint32_t padding;
};

// One workgroup per row. plain: wide rows without softcap, label_smoothing and entropy, the common case in training.
struct CrossEntropyConfig {
    ElementType element;
    bool plain;
    int waves;
    constexpr int threads() const { return waves * 64; }
    // Vectors of 8 elements that a thread has in flight.
    constexpr int vectors() const { return !plain ? 1 : waves == 8 ? 4 : 2; }
};
inline constexpr int largest_threads = 8 * 64;
// Rows up to this number of columns use half as many threads: most of the others would have nothing to do.
inline constexpr uint32_t narrow_columns = 8192;

template <CrossEntropyConfig config>
struct CrossEntropyKernel;

namespace kinds {

struct cross_entropy : Kind<CrossEntropyConfig, CrossEntropyArguments, CrossEntropyKernel> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::loss
