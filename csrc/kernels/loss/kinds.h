// kernels/loss/kinds.h: what is passed to cross entropy, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::loss {

// With x = logits, or softcap tanh(logits / softcap), t the target and V the columns:
//   lse = log sum_j e^x_j
//   loss = (1 - label_smoothing) (lse - x_t) + label_smoothing (lse - sum_j x_j / V) + z_loss lse^2
//   entropy = lse - sum_j p_j x_j with p_j = e^(x_j - lse)
// Of a row whose target is ignore_index all of them and the gradient are 0.
struct CrossEntropyArguments {
    StridedRows logits;
    const int64_t* target;
    // Of each row. Without `loss` the others are read and not computed.
    float* loss;
    float* maximum;  // of x
    float* sum;      // of e^(x_j - maximum): lse itself would lose bits of every e^(x_j - lse)
    float* entropy;  // null: nobody asks for it
    // Of the logits, rows one after the other; may be the logits themselves. null: nobody asks for it.
    void* gradient;
    const float* dloss;     // of row r at r * dloss_step
    const float* dentropy;  // null: zeros
    int64_t ignore_index;
    RowCounts rows;
    uint32_t columns;
    uint32_t
        classes;  // V: of a gradient, the columns may be some of them, and target counts from the first of these
    uint32_t wide;  // rows are whole chunks of 8 elements and begin on 4 bytes
    uint32_t dloss_step, dentropy_step;
    float label_smoothing, z_loss;
    float softcap;  // 0: none
    uint32_t padding;
};

// A row is a workgroup's. plain: wide rows without softcap, label_smoothing and entropy, which training on most models asks for.
struct CrossEntropyConfig {
    ElementType element;
    bool plain;
    int waves;
    constexpr int threads() const { return waves * 64; }
    // Of 8 elements that a thread has in flight.
    constexpr int vectors() const { return !plain ? 1 : waves == 8 ? 4 : 2; }
};
inline constexpr int largest_threads = 8 * 64;
// Rows of no more columns have half as many threads: most of them would have nothing to do.
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
