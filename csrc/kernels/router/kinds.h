// kernels/router/kinds.h: what is passed to a router of experts, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::router {

// softmax over all experts; 1 / (1 + e^-x); sqrt(log(1 + e^x))
enum class Score : int32_t { softmax, sigmoid, sqrtsoftplus };

// `lanes` lanes of a wave share a token; each has `chunks` runs of 8 experts, all next to each other.
struct RouteConfig {
    int lanes, chunks;

    constexpr int experts() const { return lanes * chunks * 8; }
    constexpr int tokens_per_wave() const { return 64 / lanes; }
};
inline constexpr int waves = 4, threads = waves * 64, most_groups = 64;
// Experts are divided by the size of a group with a multiplication: group = expert * (2^21 / size, rounded up) / 2^21, which is
// exact for experts times size below 2^21.
inline constexpr int group_shift = 21;

struct RouteArguments {
    StridedRows logits;
    RowCounts rows;     // tokens
    const float* bias;  // of each expert, or null: what is added to scores where experts are chosen
    float* weights;     // [token][k + shared]
    int32_t* ids;       // the same; shared experts come last, with the numbers from `experts` on
    uint32_t experts, k, shared;
    uint32_t groups, chosen_groups, group_size, group_factor;
    uint32_t renormalize;  // weights are divided by their sum
    float scale;           // of all weights but the shared experts', which are 1
    uint32_t aligned;      // rows of logits begin on 4 bytes
    ElementType element;   // of the logits
    Score score;
};

// A router of one expert with its product. A workgroup has up to `token_tiles` times 16 tokens and all experts; its waves share the
// features.
// experts_together  experts are neighbours in memory, features otherwise: w [features][experts], or the transposed view of
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
    uint32_t tokens;  // of a workgroup
    const void* w;
    uint32_t w_bytes, w_features_step, w_expert_step;  // strides in elements
    uint32_t features, experts, shared;
    uint32_t wide;   // 16 bytes of x, and neighbours of w, are loaded at once: they begin on 4 bytes
    float* weights;  // [token][1 + shared]
    int32_t* ids;    // the same; shared experts come last, with the numbers from `experts` on
    float* logits;   // [token], of the chosen
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
