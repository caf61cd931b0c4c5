// kernels/cache/kinds.h: the arguments of a cache write, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../cache_slots.h"
#include "../divisor.h"
#include "../element_type.h"
#include "../row.h"

namespace hipkittens::cache {

// Rows of [tokens, heads], with features of unit stride, and their destination. Strides in elements.
struct Copy {
    const void* from;
    int64_t token, head;
    CacheOutput to;
    uint32_t heads, features;
    uint32_t aligned;  // rows are 4-byte aligned
    // Adjacent threads that process the same features of different tokens: log2 of their number.
    uint32_t together;
    Divisor chunks, units;  // threads per head, with eight features each; and per token
};

// Keys and values, or the latent and the rotary part of MLA, whose destinations are in one cache.
struct CopyArguments {
    Copy copies[2];
    CacheSlots slots;
    uint32_t tokens;
    uint32_t padding;
};

// Quantized rows with a scale per head or per group of features, which are stored separately.
struct ScaledPart {
    const void* from;
    int64_t token, head;
    CacheOutput to;
    float* scales;
    int64_t scale_block, scale_slot, scale_head, scale_group;
    uint32_t heads, features;
    uint32_t aligned;
    uint32_t lane_shift;   // 1 << lane_shift lanes per head, 4 to 64
    uint32_t group_shift;  // 1 << group_shift of them share a scale
    uint32_t padding;
    Divisor head_count;
};

// A scale is the largest magnitude, at least `floor`, divided by the largest quantized value; zero_scale where that is 0. With
// powers_of_two, it is rounded up to the next power of two.
struct ScaledArguments {
    ScaledPart parts[2];  // keys and values, or one of them and a part without heads
    CacheSlots slots;
    uint32_t tokens;
    uint32_t powers_of_two;
    float floor, zero_scale;
};

// Quantized rows that share the scale of a group of slots, one per head.
struct SharedPart {
    const void* from;
    int64_t token, head;
    CacheOutput to;
    float* scales;
    int64_t scale_group, scale_head;
    uint32_t heads, features;
    uint32_t aligned;
    uint32_t by_place;  // adjacent threads process the same features of adjacent places
    Divisor chunks;     // threads per head
};

struct SharedArguments {
    SharedPart parts[2];  // workgroup_id_z
    CacheSlots slots;
    Divisor group;  // slots that share a scale
    uint32_t tokens, token_run;
    uint32_t head_step;  // workgroups that share the heads, distributed over their waves
    float floor;         // lower bound of the largest magnitude
};

inline constexpr int threads = 256, thread_features = 8;
inline constexpr uint32_t shared_waves = threads / 64;
// Adjacent workgroups process one token each from different runs of token_run tokens. Otherwise, for a prompt whose groups begin at,
// say, every 16th token, all workgroups with work would be on one XCD.
inline constexpr uint32_t shared_runs = 256;
inline constexpr uint32_t most_shared_slots = 1024;

template <ElementConfig config>
struct CopyKernel;
template <ElementConfig config>
struct ScaledKernel;
template <ElementConfig config>
struct SharedScaleKernel;

namespace kinds {

struct copy : Kind<ElementConfig, CopyArguments, CopyKernel> {};
struct scaled : Kind<ElementConfig, ScaledArguments, ScaledKernel> {};
struct shared_scale : Kind<ElementConfig, SharedArguments, SharedScaleKernel> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::cache
