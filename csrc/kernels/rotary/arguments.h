// kernels/rotary/arguments.h: what the host hands to a rotary kernel, by value.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

#include "../element_type.h"

namespace hipkittens::rotary {

// A tensor of [batch, tokens, heads, features], features of unit stride. Strides in elements.
struct HeadTensor {
    const void* data;
    int64_t batch, token, head;
};

// out may be in: a lane reads what it writes, and before it.
struct Rotated {
    HeadTensor in, out;
    int32_t heads, padding;
};

struct RotaryArguments {
    Rotated parts[2];  // q and k, or one tensor and no heads
    const void* cos;   // [table_rows, pairs]
    const void* sin;
    int64_t cos_stride, sin_stride;  // between rows
    const void* positions;           // of each token, or null: token + offset
    int64_t position_batch, position_token;
    int64_t offset, table_rows;
    uint32_t batch, tokens;
    int32_t features, pairs;  // 2 pairs <= features
    ElementType table_type;
    int32_t position_bytes;  // 4 or 8
    int32_t interleaved;     // pairs are (2i, 2i + 1) instead of (i, i + pairs)
    int32_t inverse;         // by minus the angle
    int32_t copies_rest;     // the features that are not rotated go from in to out
    int32_t wide;            // everything begins on 4 bytes, pairs and what is not rotated are whole chunks
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
