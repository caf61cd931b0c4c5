// kernels/quantization/arguments.h: the description of quantized values (codes) and scales passed to any kernel that produces them.
// SPDX-License-Identifier: MIT
#pragma once
#include "../activation_kind.h"
#include "../divisor.h"
#include "../strided_rows.h"

namespace hipkittens::quantize {

// Threads per workgroup; and columns per thread.
inline constexpr int threads = 256, columns_of_thread = 8;
// Extents of a block of a matrix that has one scale.
inline constexpr uint32_t block_rows = 128, block_columns = 128;
// For shuffled scales that start anew with each of several ranges of rows.
inline constexpr uint32_t band_rows = 32;

// fp8 and bf8: those of the target, e4m3fnuz and e5m2fnuz on gfx942, e4m3fn and e5m2 on gfx950. e2m1: two per byte, the first in
// the low half. e2m3 and e3m2: 32 in 24 bytes, the first in the lowest bits.
enum class Code : int32_t { fp8, bf8, int8, e2m1, e2m3, e3m2 };
// The layout of group scales: consecutive rows; consecutive columns; or the order of the scaled matrix instructions, see
// shuffled_scale.
enum class ScaleLayout : int32_t { rows, columns, shuffled };

// Quantized values are round(x / scale). The scale of a group is its largest magnitude divided by `largest`, or a power of two, as a
// byte of e8m0: for a largest magnitude m 2^E with 1 <= m < 2, E - power_exponent, plus one if the mantissa bits reach power_threshold.
struct QuantizeArguments {
    StridedRows x;
    StridedRows other;  // for gated kernels: what the gate x multiplies
    const void*
        bias;     // for gated kernels: added to x, then to other, 2 columns elements of their type; or null
    void* codes;  // contiguous rows
    void* scales;
    const float* given;  // the scale for everything; null: computed from x
    float* maxima;       // one per workgroup, written by the kind `maximum` and read by `tensor`
    // Rows of factors that values are multiplied by first, or null; and for each row, the index of its factors: null means the
    // first. A row without factors, because of an out-of-range index, is zeros.
    const float* smooth;
    const int32_t* smooth_ids;
    // Row r is that of token entries[r] / choices of x, or zeros if entries[r] is not below entry_limit; null: row r of x.
    const int32_t* entries;
    Divisor choices;
    uint32_t entry_limit;
    uint32_t smooth_rows;
    uint32_t matrix_rows;  // for blocks: of each matrix
    RowCounts rows;
    uint32_t columns;
    Divisor threads_per_row;              // with 8 columns each, in whole groups
    uint32_t aligned;                     // rows are 4-byte aligned
    uint32_t groups;                      // per row
    uint32_t padded_rows, padded_groups;  // of shuffled scales; for other layouts the unpadded numbers
    uint32_t group_lanes;                 // threads whose columns share a scale: 4, 8 or 16
    uint32_t maxima_count;
    Code code;
    ScaleLayout layout;
    uint32_t powers;  // scales are bytes of e8m0
    int32_t power_exponent;
    uint32_t power_threshold;
    uint32_t
        other_rounding;  // int8 rounds toward zero, and ties of e2m1 away from zero; otherwise ties go to even
    float largest;       // quantized value
    float floor, bound;  // applied to a group's largest magnitude
    float zero_scale;    // for a group of zeros
    activation::Activation activation;
    float alpha, limit;  // as in activation/kinds.h
};

}  // namespace hipkittens::quantize
