// kernels/rotary/arguments.h: the arguments that the host passes to a rotary kernel, by value.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

#include "../cache_slots.h"
#include "../divisor.h"
#include "../element_type.h"

namespace hipkittens::rotary {

// A tensor of [batch, tokens, heads, features], with features of unit stride. Strides in elements.
struct HeadTensor {
    const void* data;
    int64_t batch, token, head;
};

// Cosines and sines: one row per position or, in a grid, per row and per column of tokens. Columns: one per pair or, with `full`,
// one per feature, in the order of features. Strides between rows, in elements.
struct AngleTable {
    const void* cos;
    const void* sin;
    int64_t cos_stride, sin_stride;
    int64_t rows;
};

// A number per token: int32 or int64, or null.
struct TokenNumbers {
    const void* data;
    int64_t batch, token;  // strides in elements
    int32_t bytes, padding;
};

// How the features of a token are rotated: `pairs` pairs of them, starting at feature `first`.
struct Rotation {
    AngleTable table;
    AngleTable column_table;  // for a grid
    TokenNumbers positions,
        offsets;  // row of the table: position + offset of the token + offset; null: the token, 0
    int64_t offset;
    uint32_t
        grid_width;  // for a grid: token / width rotates the first half of the pairs, token % width the second half; otherwise 0
    uint32_t features, pairs, first;  // 2 pairs <= features; first is 0, or features - 2 pairs
    ElementType table_type;
    uint32_t full;         // the two features of a pair have separate cosines and sines
    uint32_t interleaved;  // pairs are (2i, 2i + 1) instead of (i, i + pairs), in each half of a grid
    uint32_t inverse;      // applies the transpose
};

// out may alias in: a lane reads what it writes, before writing.
struct Rotated {
    HeadTensor in, out;
    int32_t heads, padding;
};

struct RotaryArguments {
    Rotated parts[2];  // q and k, or one tensor and a part without heads
    Rotation rotation;
    uint32_t batch, tokens;
    uint32_t copies_rest;  // features that are not rotated are copied from in to out
    uint32_t wide;         // everything is 4-byte aligned, and pairs and other features are whole chunks
};

// Heads of a packed qkv. weight: of an RMS norm over each head before the rotation, or null.
struct HeadPart {
    HeadTensor in, out;
    const void* weight;
    CacheOutput cache;
    uint32_t heads;
    uint32_t passes;  // over the heads, with as many at a time as fit in a wave
    uint32_t turned;  // not for values
    uint32_t cached;
};

struct QkvArguments {
    HeadPart parts[3];  // q, k, v
    Rotation rotation;
    CacheSlots slots;  // of [batch, tokens], flattened
    ElementType weight_type;
    float epsilon;
    uint32_t batch, tokens;
    uint32_t wide;         // as above, except for caches
    uint32_t lane_shift;   // 1 << lane_shift lanes per head
    uint32_t share_shift;  // 1 << share_shift waves per token
};

inline constexpr uint32_t joined_parts = 5;

// Features of heads that are written to heads that may have more: the pairs that are rotated, or features [begin, end), which are
// copied. They are numbered as in the output; `in` begins with feature `moved`.
struct JoinedPart {
    HeadTensor in, out;  // out may be null
    CacheOutput cache;
    CacheSlots slots;  // of [batch, tokens], flattened; null: each token is its own slot
    uint32_t heads;
    uint32_t turns, cached;
    uint32_t begin, end, moved;
    Divisor units, head_units;  // threads per token, and per head
};

// The values that every thread needs first come first.
struct JoinedArguments {
    uint32_t ends[joined_parts - 1];  // of parts, in workgroups
    Divisor tokens;
    uint32_t batch;
    uint32_t wide;  // as above, except for caches
    Rotation rotation;
    uint64_t padding;
    JoinedPart parts[joined_parts];  // at an offset that is a multiple of the size of a part, see joined.h
};

// grad: of the outputs; x: the heads before the norm, if there is a weight; out: the gradient of x.
struct HeadGradient {
    HeadTensor grad, x, out;
    const void* weight;
    float* weight_sums;  // [waves of the grid, features]: partial sums of the weight's gradient
    uint32_t heads, passes, turned, padding;
};

struct QkvBackwardArguments {
    HeadGradient parts[3];  // workgroup_id_y
    Rotation rotation;
    ElementType weight_type;
    float epsilon;
    uint32_t batch, tokens;
    uint32_t wide, lane_shift;
    uint32_t workgroups, padding;  // per part
};

// A tensor as above, with strides in bytes.
struct PlainTensor {
    const void* data;
    int64_t batch;
    uint32_t token, head;
};

// The common case, with the fields needed by the first loads first: tensors that are `wide`, all features rotated as
// pairs (i, i + pairs), 8 << unit_shift pairs, and one row of the tables per token, in their order.
struct PlainArguments {
    PlainTensor in;
    const void* cos;  // of token 0
    const void* sin;
    uint32_t extent;  // bytes from the first feature of a token to past its last one
    uint32_t tokens, table_stride;
    uint16_t unit_shift;
    uint16_t share_shift;  // 1 << share_shift waves per token, at most `passes`
    PlainTensor out, second_in, second_out;
    uint32_t out_extent, second_extent, second_out_extent;
    uint32_t passes,
        second_passes;  // over the heads, with as many at a time as fit in a wave; 0 if there is no second tensor
    uint32_t inverse, padding[2];
};

}  // namespace hipkittens::rotary
