// kernels/router/kinds.h: the arguments of an expert router, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::router {

// softmax over all experts; 1 / (1 + e^-x); sqrt(log(1 + e^x))
enum class Score : int32_t { softmax, sigmoid, sqrtsoftplus };

// `lanes` lanes of a wave share a token; each has `chunks` runs of 8 experts, all contiguous.
struct RouteConfig {
    int lanes, chunks;

    constexpr int experts() const { return lanes * chunks * 8; }
    constexpr int tokens_per_wave() const { return 64 / lanes; }
};
inline constexpr int waves = 4, threads = waves * 64, most_groups = 64;
// Experts are divided by the group size with a multiplication: group = expert * (2^21 / size, rounded up) / 2^21, which is
// exact for experts times size below 2^21.
inline constexpr int group_shift = 21;

struct RouteArguments {
    StridedRows logits;
    RowCounts rows;     // tokens
    const float* bias;  // per expert, or null: added to scores when choosing experts
    float* weights;     // [token][k + shared]
    int32_t* ids;       // the same; shared experts come last, with indices from `experts` on
    uint32_t experts, k, shared;
    uint32_t groups, chosen_groups, group_size, group_factor;
    uint32_t renormalize;  // weights are divided by their sum
    float scale;           // applied to all weights except those of shared experts, which are 1
    uint32_t aligned;      // rows of logits are 4-byte aligned
    ElementType element;   // of the logits
    Score score;
};

// A top-1 router fused with its matrix product. A workgroup has up to `token_tiles` times 16 tokens and all experts; its waves
// divide the features.
// experts_together  experts are contiguous in memory, otherwise features are: w [features][experts], or the transposed view of
//                   [experts][features]
// depth             units of features that a wave loads before it multiplies the first
struct Top1Config {
    ElementType element;
    bool experts_together;
    int token_tiles, depth;
};
inline constexpr int top1_waves = 16, top1_threads = top1_waves * 64, most_top1_experts = 16;

struct Top1Arguments {
    StridedRows x;
    RowCounts rows;   // tokens
    uint32_t tokens;  // per workgroup
    const void* w;
    uint32_t w_bytes, w_features_step, w_expert_step;  // strides in elements
    uint32_t features, experts, shared;
    uint32_t wide;   // 16 bytes of x, and adjacent elements of w, are loaded at once: they are 4-byte aligned
    float* weights;  // [token][1 + shared]
    int32_t* ids;    // the same; shared experts come last, with indices from `experts` on
    float* logits;   // [token], of the chosen expert
};

template <RouteConfig config>
struct Route;
template <Top1Config config>
struct Top1;

namespace kinds {

struct route : Kind<RouteConfig, RouteArguments, Route> {};
struct top1 : Kind<Top1Config, Top1Arguments, Top1> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::router
