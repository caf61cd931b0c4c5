// kernels/attention/plan.h: plans the launches of a problem. Pure functions: no device, no library, no state.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "../device_shape.h"
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

// The sizes shared by both directions.
struct Problem {
    DeviceShape device;
    ElementType element = ElementType::bf16;
    // Packed sequences: their number, and the longest.
    int64_t batch = 0, n_q = 0, n_k = 0;
    int64_t heads = 0, key_heads = 0;
    int64_t head_dim = 0, value_dim = 0;  // of q and k; of v and out
    double scale = 0;
    double softcap = 0;  // applied to the scaled scores; 0: none
    // On the device: the ALiBi slopes of heads, with slopes_of_sequence between consecutive sequences (0: shared by all), or null;
    // the sinks of heads, or null.
    const float* slopes = nullptr;
    int64_t slopes_of_sequence = 0;
    const float* sinks = nullptr;
    bool causal = false;
    int64_t window_left = -1,
            window_right = -1;  // keys on each side of a query's own position; negative: all
    // Packed sequences (arguments.h): batch + 1 first rows on the device, and the total number of rows. Null: a padded batch.
    const int32_t *first_q = nullptr, *first_k = nullptr;
    int64_t rows_q = 0, rows_k = 0;
    double dropout_p = 0;
    const uint64_t* seed = nullptr;  // two, on the device; set exactly if dropout_p > 0
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
    const float* grad_lse = nullptr;  // null: zero, as with sinks, which are not part of the LSE
    float* grad_sinks = nullptr;      // set exactly if sinks are
    float* workspace = nullptr;       // backward_workspace_floats, any contents
};

struct Plan {
    std::vector<Launch> launches;  // in order, on one stream
};

// A variant, and the number of splits of its keys, each handled by a workgroup.
using ForwardVariant = Row<kinds::forward>;
struct ForwardChoice {
    const ForwardVariant* variant;
    int64_t splits;
};
// These throw std::invalid_argument, stating what is wrong and what is expected.
ForwardChoice choose_forward(const ForwardProblem& problem);
int64_t forward_workspace_floats(const Problem& problem, const ForwardChoice& choice);  // 0: none is needed
Plan plan_forward(const ForwardProblem& problem, const ForwardChoice& choice);
bool suits(const ForwardVariant& variant, const ForwardProblem& problem);

// The kernel that computes all gradients, null if there is none of the size; and the number of query heads of a group
// that a workgroup of keys processes.
using BackwardVariant = Row<kinds::backward>;
struct BackwardChoice {
    const BackwardVariant* one_pass;
    int64_t heads_per_split;
};
BackwardChoice choose_backward(const Problem& problem);
int64_t backward_workspace_floats(const Problem& problem, const BackwardChoice& choice);
Plan plan_backward(const BackwardProblem& problem, const BackwardChoice& choice);

// For packed sequences that attend to themselves with weights silu(scale q k) / n_q. Of `shared`, causal and the scale are
// used; there are no windows, score terms, sinks or dropout.
struct PointwiseProblem {
    Problem shared;
    const int32_t* targets = nullptr;  // per sequence, on the device; null: none
    int64_t context = 0;               // first rows of every sequence
    int64_t distance = 0;              // positions that a row looks back; 0: all
    TensorLayout q, k, v, out;         // the backward has no out
    TensorLayout grad_out, grad_q, grad_k, grad_v;
};
Plan plan_pointwise_forward(const PointwiseProblem& problem);
Plan plan_pointwise_backward(const PointwiseProblem& problem);

}  // namespace hipkittens::attention
