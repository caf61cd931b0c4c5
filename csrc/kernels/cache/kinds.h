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
};

inline constexpr int threads = 256, thread_features = 8;

template <ElementConfig config>
struct CopyKernel;

namespace kinds {

struct copy : Kind<ElementConfig, CopyArguments, CopyKernel> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::cache
