// kernels/logits/plan.h: plans the launch of an indexer's logits.
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
    int64_t most_pages;          // per row of the table
};

// Throws std::invalid_argument if no kernel supports the problem. Tensors, strides, ends_of_sequences and clean are set by the caller.
Launch plan(const Problem& problem, LogitsArguments arguments);

}  // namespace hipkittens::logits
