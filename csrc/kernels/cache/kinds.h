// kernels/cache/kinds.h: what is passed to a write into a cache, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../cache_slots.h"
#include "../divisor.h"
#include "../element_type.h"
#include "../row.h"

namespace hipkittens::cache {

// Rows of [tokens, heads], features of unit stride, and where they go. Strides in elements.
struct Copy {
    const void* from;
    int64_t token, head;
    CacheOutput to;
    uint32_t heads, features;
    uint32_t aligned;  // rows begin on 4 bytes
    // Neighbouring threads with the same features of as many tokens, a power of two as its exponent.
    uint32_t together;
    Divisor chunks, units;  // threads of a head, eight features each, and of a token
};

// Keys and values, or the latent and the rotary part of MLA, whose destinations are in one cache.
struct CopyArguments {
    Copy copies[2];
    CacheSlots slots;
    uint32_t tokens;
    uint32_t padding;
};

// Rows whose codes have scales of their own, of each head or of groups of its features, which are written beside them.
struct ScaledPart {
    const void* from;
    int64_t token, head;
    CacheOutput to;
    float* scales;
    int64_t scale_block, scale_slot, scale_head, scale_group;
    uint32_t heads, features;
    uint32_t aligned;
    uint32_t lane_shift;   // 1 << lane_shift lanes have a head, 4 to 64
    uint32_t group_shift;  // and as many of them have one scale
    uint32_t padding;
    Divisor head_count;
};

// A scale is the largest magnitude, `floor` at least, over the largest code: zero_scale where that is 0. With powers_of_two it is the
// least power of two that is not below that.
struct ScaledArguments {
    ScaledPart parts[2];  // keys and values, or one of them and no heads
    CacheSlots slots;
    uint32_t tokens;
    uint32_t powers_of_two;
    float floor, zero_scale;
};

// Rows whose codes have the scale of a group of slots, one for each head.
struct SharedPart {
    const void* from;
    int64_t token, head;
    CacheOutput to;
    float* scales;
    int64_t scale_group, scale_head;
    uint32_t heads, features;
    uint32_t aligned;
    uint32_t by_place;  // threads beside each other have the same features of places beside each other
    Divisor chunks;     // threads of a head
};

struct SharedArguments {
    SharedPart parts[2];  // workgroup_id_z
    CacheSlots slots;
    Divisor group;  // slots that share a scale
    uint32_t tokens, token_run;
    uint32_t head_step;  // workgroups that share the heads, of which each of their waves has some
    float floor;         // the least largest magnitude
};

inline constexpr int threads = 256, thread_features = 8;
inline constexpr uint32_t shared_waves = threads / 64;
// Runs of token_run tokens, of which workgroups beside each other have one token each. A prompt's groups begin at every 16th token, say,
// and workgroups with work would all be of one XCD.
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
