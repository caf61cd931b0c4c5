// kernels/logits/kinds.h: the arguments of an indexer's logits, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../divisor.h"
#include "../element_type.h"
#include "../row.h"

namespace hipkittens::logits {

inline constexpr int waves = 4, threads = waves * 64;
// Keys that a wave processes at a time, and a workgroup per iteration of its loop.
inline constexpr int key_tiles = 4, wave_keys = 16 * key_tiles, turn_keys = waves * wave_keys;
// Rows of q that a workgroup keeps in LDS.
inline constexpr int query_bytes = 16384;

// paged: keys are in pages referenced by a table; pages of 8-bit floats have their scales at the end.
struct LogitsConfig {
    ElementType element;
    int head_dim;
    bool paged;

    constexpr int row_bytes() const { return head_dim * size_of(element); }
    constexpr int rows() const { return query_bytes / row_bytes(); }
    constexpr bool scales_in_pages() const { return paged && element == ElementType::fp8; }
};

// Strides of q and k in bytes, others in elements. Token t of sequence b is row b x queries + t of q, weights and out.
struct LogitsArguments {
    const void* q;
    int64_t q_token_bytes, q_head_bytes;
    // Without pages, key n is at n x slot_bytes. For 8-bit floats, the scales of a page follow its last key.
    const void* k;
    int64_t page_bytes, slot_bytes;
    const float* key_scale;  // without pages, or null
    int64_t key_scale_step;
    const float* weights;
    int64_t weight_token_step, weight_head_step;
    const int32_t* starts;  // per token, or null: 0
    const int32_t* ends;    // per token; or per sequence, whose last token sees all keys
    const int32_t* table;   // per sequence, table_step apart
    int64_t table_step;
    float* out;
    int64_t out_step;
    Divisor page, token_blocks, key_blocks;
    uint32_t heads, queries;
    uint32_t keys, limit;          // columns of out, and keys that a row of the table has space for
    uint32_t block_tokens, turns;  // per workgroup
    uint32_t ends_of_sequences, clean;
};

template <LogitsConfig config>
struct Score;

namespace kinds {

struct score : Kind<LogitsConfig, LogitsArguments, Score> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::logits
