// kernels/paged_attention/kinds.h: the arguments of attention over a paged cache, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../divisor.h"
#include "../element_type.h"
#include "../row.h"

namespace hipkittens::paged_attention {

// Keys or values in pages. Strides in bytes; a page may be anywhere in 64 bits, its slots are within 4 GiB.
struct PagedTensor {
    const void* data;
    int64_t page_bytes, head_bytes;
    uint32_t slot_bytes;
    // For a grouped cache: stride between groups of 16 bytes, of a key's features or a feature's values, and between features of values.
    uint32_t group_bytes, feature_bytes;
};

// Scales of a quantized cache, with strides in elements: per sequence and key head, or per page, key head and slot.
struct CacheScales {
    const float* data;  // or null: 1
    int64_t sequence_step, page_step, head_step, slot_step;
};

// Tokens of sequence b are rows ends[b] .. ends[b + 1] - 1 of q or, without ends, `queries` rows each.
struct Sequences {
    const int32_t* ends;     // or null
    const int32_t* lengths;  // keys of each sequence, including those of the new tokens
    int32_t queries;         // the largest number in one sequence
    uint32_t count;
};

struct PagedArguments {
    const void* q;
    int64_t q_token_bytes, q_head_bytes;
    PagedTensor k, v;
    // Pages of sequence b begin at table + b x table_stride or, if table_starts is set, at table + table_starts[b].
    const int32_t* table;
    int64_t table_stride;
    const int32_t* table_starts;
    int32_t most_keys;  // that a row of the table has space for
    Sequences sequences;
    void* out;
    int64_t out_token_bytes, out_head_bytes;
    float* lse;  // [heads, tokens], natural logarithm, without sinks
    // For splits of the keys of all sequences together, `splits` in total: the number of tiles per split, the first split of each
    // sequence, and the end of the last one's; or null.
    const int32_t* plan;
    // With several splits, instead of out and lse: [split, token, head, head_dim] and [split, token, head]; with a plan, the token
    // dimension is `queries`.
    float *partial_out, *partial_lse;
    const float* slopes;  // per head, `slopes_stride` from sequence to sequence; or null
    int64_t slopes_stride;
    const float* sinks;  // per head; or null
    // For 8-bit caches, in addition to `scale` and `value_factor`.
    CacheScales key_scales, value_scales;
    uint32_t tokens, heads;
    Divisor page, group, key_heads, row_tiles, splits;
    int32_t shortest_split;  // tiles of keys
    int32_t left, right;     // keys that a query sees before and after its own position
    uint32_t xcds, chunk;    // chunked_workgroup
    float scale, softcap, value_factor;
};

struct CombineArguments {
    const float *partial_out, *partial_lse;
    Sequences sequences;
    const int32_t* plan;
    Divisor heads, queries;
    uint32_t tokens;
    int32_t splits, head_dim, log2_groups_of_row;
    const float* sinks;
    void* out;
    int64_t out_token_bytes, out_head_bytes;
    float* lse;
};

// Rows [tokens, heads, head_dim] that have attended to a part of their keys, and the LSE of that part, [heads, tokens].
struct PartArgument {
    const void* out;
    int64_t token_bytes, head_bytes;
    const float* lse;
};
struct MergeArguments {
    PartArgument parts[2];
    void* out;
    float* lse;
    uint32_t tokens, head_dim;
    Divisor heads, threads_per_row;
};

inline constexpr int merge_threads = 256, merge_columns = 8;
inline constexpr int tile_keys = 32, waves = 4;
// To combine splits, a group of lanes processes this many columns of a row and adds this many splits at a time.
inline constexpr int combine_threads = 256, group_lanes = 32, group_columns = 128, group_splits = 4;
// The number of groups that add the splits of the same columns.
constexpr int log2_groups_that_add(int splits) {
    int log2 = 0;
    while (1 << log2 < combine_threads / group_lanes && group_splits << log2 < splits) ++log2;
    return log2;
}
inline constexpr int32_t unlimited = 1 << 30;
// Splits of the keys: the maximum number and, where their number is not specified, the minimum number of tiles in each.
inline constexpr int most_splits = 256, shortest_split = 8;

// Rows of a cache of multi-head latent attention: a latent, which is key and value, followed by a rotary key.
inline constexpr int latent_dim = 512, rotary_dim = 64;

// 8-bit rows with embedded scales, like those of DeepSeek V3.2 (FlashMLA, "FP8 KV cache"): a latent of e4m3fn on every target, one
// float32 per 128 elements of it, and a rotary key of bf16.
inline constexpr int features_of_a_scale = 128, scaled_row_scales = latent_dim / features_of_a_scale,
                     scaled_row_bytes = latent_dim + scaled_row_scales * 4 + rotary_dim * 2;

// Scales of a quantized cache: of the whole cache, of key heads or of sequences, if any; of each key and each value; or embedded in
// its rows.
enum class CacheScaling { by_sequence, by_key, in_rows };

// cache: the element type of keys and values in memory. grouped: keys have groups of 16 bytes of their features at a stride, and for 8
// consecutive keys, which are in one page, the values of a feature are contiguous.
struct PagedConfig {
    ElementType element;
    int head_dim, row_tiles;
    ElementType cache;
    CacheScaling scaling;
    bool grouped;

    constexpr int rows() const { return 16 * row_tiles; }
    constexpr int value_dim() const { return head_dim == latent_dim + rotary_dim ? latent_dim : head_dim; }
};

template <PagedConfig config>
struct Forward;
template <PagedConfig config>
struct Latent;
template <PagedConfig config>
struct LatentShared;
template <ElementConfig config>
struct Combine;
template <ElementConfig config>
struct Merge;

namespace kinds {

struct forward : Kind<PagedConfig, PagedArguments, Forward> {};
// One cache for keys and values.
struct latent : Kind<PagedConfig, PagedArguments, Latent> {};
struct latent_shared : Kind<PagedConfig, PagedArguments, LatentShared> {};
// Combines the splits of the keys.
struct combine : Kind<ElementConfig, CombineArguments, Combine> {};
// Combines two results.
struct merge : Kind<ElementConfig, MergeArguments, Merge> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
    using enum CacheScaling;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::paged_attention
