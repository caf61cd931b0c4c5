// kernels/quantization/arguments.h: what the host says of codes and scales to any kernel that makes them.
// SPDX-License-Identifier: MIT
#pragma once
#include "../activation_kind.h"
#include "../divisor.h"
#include "../strided_rows.h"

namespace hipkittens::quantize {

// Of a workgroup; and columns of a thread.
inline constexpr int threads = 256, columns_of_thread = 8;
// Of a block of a matrix that has one scale.
inline constexpr uint32_t block_rows = 128, block_columns = 128;
// Of shuffled scales that begin with each of several ranges of rows.
inline constexpr uint32_t band_rows = 32;

// fp8 and bf8: the target's own, e4m3fnuz and e5m2fnuz of gfx942, e4m3fn and e5m2 of gfx950. e2m1: two to a byte, the first one in
// the low half. e2m3 and e3m2: 32 in 24 bytes, the first one in the lowest bits.
enum class Code : int32_t { fp8, bf8, int8, e2m1, e2m3, e3m2 };
// Where the scale of a group lies: rows one after the other; columns one after the other; or in the order of the scaled matrix
// instructions, see shuffled_scale.
enum class ScaleLayout : int32_t { rows, columns, shuffled };

// Codes are round(x / scale). The scale of a group is its largest magnitude over `largest`, or a power of two, a byte of e8m0:
// of a largest magnitude m 2^E with 1 <= m < 2, E - power_exponent, and one more from the mantissa bits power_threshold on.
struct QuantizeArguments {
    StridedRows x;
    StridedRows other;  // of gated kernels: what the gate x multiplies
    const void*
        bias;     // of gated kernels: added to x, then to other, 2 columns elements of their type; or null
    void* codes;  // rows one after the other
    void* scales;
    const float* given;  // the scale of everything; null: from x
    float* maxima;       // of each workgroup, what the kind `maximum` writes and `tensor` reads
    // Rows of factors that values are multiplied by before, or null; and of each row, which of them is its own: null is the first.
    // A row that has none, by a number out of range, is zeros.
    const float* smooth;
    const int32_t* smooth_ids;
    // Row r is that of token entries[r] / choices of x, or zeros where entries[r] is not below entry_limit; null: row r of x.
    const int32_t* entries;
    Divisor choices;
    uint32_t entry_limit;
    uint32_t smooth_rows;
    uint32_t matrix_rows;  // of blocks: of each matrix
    RowCounts rows;
    uint32_t columns;
    Divisor threads_per_row;              // of 8 columns each, whole groups of them
    uint32_t aligned;                     // rows begin on 4 bytes
    uint32_t groups;                      // of a row
    uint32_t padded_rows, padded_groups;  // of shuffled scales; the others are the same without padding
    uint32_t group_lanes;                 // threads whose columns share a scale: 4, 8 or 16
    uint32_t maxima_count;
    Code code;
    ScaleLayout layout;
    uint32_t powers;  // scales are bytes of e8m0
    int32_t power_exponent;
    uint32_t power_threshold;
    uint32_t other_rounding;  // int8 toward zero, ties of e2m1 away from zero; without it ties go to even
    float largest;            // code
    float floor, bound;       // of a group's largest magnitude
    float zero_scale;         // of a group of zeros
    activation::Activation activation;
    float alpha, limit;  // as in activation/kinds.h
};

}  // namespace hipkittens::quantize
