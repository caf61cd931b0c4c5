// kernels/logits/plan.h: from the logits of an indexer to their launch.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "../device_shape.h"
#include "../launch.h"
#include "kinds.h"

namespace hipkittens::logits {

struct Problem {
    DeviceShape device;
    ElementType element;
    int64_t head_dim, heads;
    int64_t sequences, queries;  // tokens of each sequence
    int64_t keys;                // columns of the result
    int64_t page;                // 0: no pages
    int64_t most_pages;          // of a row of the table
};

// Throws std::invalid_argument for what no kernel takes. Tensors, strides, ends_of_sequences and clean are the caller's.
Launch plan(const Problem& problem, LogitsArguments arguments);

}  // namespace hipkittens::logits
