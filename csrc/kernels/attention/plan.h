// kernels/attention/plan.h: from a problem to launches. Pure: no device, no library, nothing remembered.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "../launch.h"
#include "arguments.h"
#include "backward_config.h"
#include "config.h"
#include "kinds.h"

namespace hipkittens::attention {

// Strides in elements, unit stride along head_dim.
struct TensorLayout {
    const void* data = nullptr;
    int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
};

// The sizes both directions share.
struct Problem {
    int target = 0;         // 942 or 950
    int compute_units = 0;  // of the device; 0: the target's usual count
    ElementType element = ElementType::bf16;
    // Of packed sequences: their number, and the longest.
    int64_t batch = 0, n_q = 0, n_k = 0;
    int64_t heads = 0, key_heads = 0, head_dim = 0;
    double scale = 0;
    bool causal = false;
    int64_t window_left = -1, window_right = -1;  // keys beside a query's own place; negative: all
    // Packed sequences (arguments.h): batch + 1 first rows on the device, and all rows together. Null: a padded batch.
    const int32_t *first_q = nullptr, *first_k = nullptr;
    int64_t rows_q = 0, rows_k = 0;
    double dropout_p = 0;
    const uint64_t* seed = nullptr;  // two, on the device; given exactly when dropout_p > 0
};

struct ForwardProblem {
    Problem shared;
    TensorLayout q, k, v, out;
    float* lse = nullptr;
    float* workspace = nullptr;  // forward_workspace_floats, any contents
};

struct BackwardProblem {
    Problem shared;
    TensorLayout q, k, v, out, grad_out;
    TensorLayout grad_q, grad_k, grad_v;
    const float* lse = nullptr;
    const float* grad_lse = nullptr;  // null: zero
    float* workspace = nullptr;       // backward_workspace_floats, any contents
};

struct Plan {
    std::vector<Launch> launches;  // in order, on one stream
};

// Throws std::invalid_argument with what is wrong and what would be right.
int64_t forward_workspace_floats(const ForwardProblem& problem);  // of plan_forward; 0: none is needed
Plan plan_forward(const ForwardProblem& problem);

using ForwardVariant = Row<kinds::forward>;

// A variant, and into how many parts the keys are split, each a workgroup's.
struct ForwardChoice {
    const ForwardVariant* variant;
    int64_t parts;
};
ForwardChoice choose_forward(const ForwardProblem& problem);
int64_t forward_workspace_floats(const Problem& problem, int64_t parts);
Plan plan_forward_variant(const ForwardProblem& problem, const ForwardChoice& choice);
bool suits(const ForwardVariant& variant, const ForwardProblem& problem);

int64_t backward_workspace_floats(const Problem& problem);
Plan plan_backward(const BackwardProblem& problem);

}  // namespace hipkittens::attention
