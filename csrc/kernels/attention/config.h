// kernels/attention/config.h: what is fixed when an attention kernel is compiled.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../targets.h"

namespace hipkittens::attention {

enum class Schedule {
    simple,       // load the next tile, attend to this one, meet
    interleaved,  // matrix steps, softmax and LDS reads of neighbouring chunks of keys side by side
};

struct ForwardConfig {
    ElementType input;
    int head_dim;  // of the tiles; any smaller one that is a multiple of 8 runs with the rest of a row masked
    int waves;
    Schedule schedule;
    bool dropout;  // drops weights

    static constexpr int queries_per_wave = 32, keys_per_tile = 64;
    constexpr int queries() const { return waves * queries_per_wave; }
    constexpr int threads() const { return waves * 64; }
    constexpr int waves_per_simd() const { return schedule == Schedule::simple ? waves / 4 : 2; }
};

struct ForwardVariant {
    const char* name;
    Targets targets;
    ForwardConfig config;
};

// The kernel that joins parts of keys.
struct CombineVariant {
    const char* name;
    Targets targets;
    ElementType input;
};
inline constexpr int combine_threads = 256, combine_lanes_per_row = 16;

// The rows of variants.def as constants variant_<name>, and all of a kind in order.
#define ATTENTION_FORWARD(name, targets, input, head_dim, waves, schedule, dropout) \
    inline constexpr ForwardVariant variant_##name{                                 \
        #name, Targets::targets, {ElementType::input, head_dim, waves, Schedule::schedule, dropout}};
#define ATTENTION_COMBINE(name, targets, input) \
    inline constexpr CombineVariant variant_##name{#name, Targets::targets, ElementType::input};
#include "each_row.h"

inline constexpr ForwardVariant forward_variants[] = {
#define ATTENTION_FORWARD(name, ...) variant_##name,
#include "each_row.h"
};

inline constexpr CombineVariant combine_variants[] = {
#define ATTENTION_COMBINE(name, ...) variant_##name,
#include "each_row.h"
};

}  // namespace hipkittens::attention
