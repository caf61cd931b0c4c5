// kernels/rotary/arguments.h: what the host hands to a rotary kernel, by value.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

#include "../cache_slots.h"
#include "../divisor.h"
#include "../element_type.h"

namespace hipkittens::rotary {

// A tensor of [batch, tokens, heads, features], features of unit stride. Strides in elements.
struct HeadTensor {
    const void* data;
    int64_t batch, token, head;
};

// Cosines and sines: a row for each position or, in a grid, for each row and for each column of tokens. Columns of a row: one for
// each pair, or with `full` for each feature, in the order of features. Strides between rows, in elements.
struct AngleTable {
    const void* cos;
    const void* sin;
    int64_t cos_stride, sin_stride;
    int64_t rows;
};

// A number for each token: int32 or int64, or null.
struct TokenNumbers {
    const void* data;
    int64_t batch, token;  // strides in elements
    int32_t bytes, padding;
};

// How the features of a token are turned: 2 pairs of them from `first` on.
struct Rotation {
    AngleTable table;
    AngleTable column_table;  // of a grid
    TokenNumbers positions,
        offsets;  // row of the table: position + offset of the token + offset; null: the token, 0
    int64_t offset;
    uint32_t
        grid_width;  // of a grid: the first half of the pairs is turned by token / width, the second by token % width; else 0
    uint32_t features, pairs, first;  // 2 pairs <= features; first is 0, or features - 2 pairs
    ElementType table_type;
    uint32_t full;         // the two features of a pair have a cosine and a sine each
    uint32_t interleaved;  // pairs are (2i, 2i + 1) instead of (i, i + pairs), in each half of a grid
    uint32_t inverse;      // the transpose
};

// out may be in: a lane reads what it writes, and before it.
struct Rotated {
    HeadTensor in, out;
    int32_t heads, padding;
};

struct RotaryArguments {
    Rotated parts[2];  // q and k, or one tensor and no heads
    Rotation rotation;
    uint32_t batch, tokens;
    uint32_t copies_rest;  // the features that are not rotated go from in to out
    uint32_t wide;         // everything begins on 4 bytes, pairs and what is not rotated are whole chunks
};

// Heads of a packed qkv. weight: of an RMS norm over each head before it is turned, or null.
struct HeadPart {
    HeadTensor in, out;
    const void* weight;
    CacheOutput cache;
    uint32_t heads;
    uint32_t passes;  // over the heads, as many at a time as a wave takes
    uint32_t turned;  // of values: no
    uint32_t cached;
};

struct QkvArguments {
    HeadPart parts[3];  // q, k, v
    Rotation rotation;
    CacheSlots slots;  // of [batch, tokens] one after the other
    ElementType weight_type;
    float epsilon;
    uint32_t batch, tokens;
    uint32_t wide;         // as above, of everything but caches
    uint32_t lane_shift;   // 1 << lane_shift lanes have a head
    uint32_t share_shift;  // 1 << share_shift waves have a token
};

inline constexpr uint32_t joined_parts = 5;

// Features of heads that go to heads that may have more: the pairs that are turned, or features [begin, end), which are copied. They
// are numbered as in what comes of them; `in` begins with feature `moved`.
struct JoinedPart {
    HeadTensor in, out;  // out: or null
    CacheOutput cache;
    CacheSlots slots;  // of [batch, tokens] one after the other; null: each token is its own slot
    uint32_t heads;
    uint32_t turns, cached;
    uint32_t begin, end, moved;
    Divisor units, head_units;  // threads of a token, and of a head
};

// What every thread asks first is in front.
struct JoinedArguments {
    uint32_t ends[joined_parts - 1];  // of parts, in workgroups
    Divisor tokens;
    uint32_t batch;
    uint32_t wide;  // as above, of everything but caches
    Rotation rotation;
    uint64_t padding;
    JoinedPart parts[joined_parts];  // as far behind the beginning as a whole number of parts, see joined.h
};

// grad: of what was returned; x: the heads that were normalised, where there is a weight; out: the gradient of x.
struct HeadGradient {
    HeadTensor grad, x, out;
    const void* weight;
    float* weight_sums;  // [waves of the grid, features]: the gradient of the weight in parts
    uint32_t heads, passes, turned, padding;
};

struct QkvBackwardArguments {
    HeadGradient parts[3];  // workgroup_id_y
    Rotation rotation;
    ElementType weight_type;
    float epsilon;
    uint32_t batch, tokens;
    uint32_t wide, lane_shift;
    uint32_t workgroups, padding;  // of a part
};

// A tensor as above, strides in bytes.
struct PlainTensor {
    const void* data;
    int64_t batch;
    uint32_t token, head;
};

// What most calls need, with what the first loads need in front: tensors that are `wide`, all features turned as pairs
// (i, i + pairs), 8 << unit_shift pairs, and a row of the tables for each token, in their order.
struct PlainArguments {
    PlainTensor in;
    const void* cos;  // of token 0
    const void* sin;
    uint32_t extent;  // bytes from a token's first feature to behind its last
    uint32_t tokens, table_stride;
    uint16_t unit_shift;
    uint16_t share_shift;  // 1 << share_shift waves have a token, and no more than `passes`
    PlainTensor out, second_in, second_out;
    uint32_t out_extent, second_extent, second_out_extent;
    uint32_t passes,
        second_passes;  // over the heads, as many at a time as a wave takes; none of a second tensor: 0
    uint32_t inverse, padding[2];
};

}  // namespace hipkittens::rotary
