// kernels/norm/arguments.h: the arguments that the host passes to a norm kernel, by value.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

#include "../element_type.h"
#include "../quantization/arguments.h"
#include "../strided_rows.h"

namespace hipkittens::norm {

// Rows are indexed over up to three dimensions; row = (outer * middle_count + middle) * inner_count + inner.
struct Rows {
    uint32_t count, middle_count, inner_count;
    int32_t cols;
};

// A tensor of such rows with unit stride inside them. Strides in elements.
struct RowTensor {
    const void* data;
    int64_t outer, middle, inner;
};

struct Dropout {
    const uint64_t* seed;  // the key and the upper half of the counter; null: no dropout
    uint32_t threshold;    // an element is dropped if its 32 random bits are below it
    float scale;           // applied to the others
};

// z = dropout(x) + residual, y = (z - mean) rstd weight + bias
struct ForwardArguments {
    RowTensor x, residual;  // residual.data may be null
    void* y;                // the rows of results are contiguous
    void* sum;              // z, or null
    float* mean;            // needed for the gradient: null if it is not needed
    float* rstd;
    const void* weight;  // cols elements, or null
    const void* bias;
    Dropout dropout;
    Rows rows;
    ElementType parameter_type;
    float epsilon;
    uint32_t workers;  // worker w processes rows w, w + workers, ...
    int32_t wide;      // in every tensor, rows are whole chunks of 8 elements and 4-byte aligned
    int32_t wide_parameters;
    int32_t plain;     // wide, one dimension of rows, and parameters of the element's type or float
    int32_t centred;   // 0: the mean is taken as zero (rms_norm)
    float per_column;  // 1 / cols
};

// The same without dropout, for `wide` rows in one dimension, with a weight of their type: what most calls need. The fields
// needed by a call without residual and statistics come first and are in registers from the start. Strides in bytes.
struct PlainArguments {
    uint32_t rows, row_bytes, x_stride;
    float epsilon;
    const void* x;
    const void* weight;
    const void* bias;  // may be null
    void* y;
    float per_column;
    uint32_t has_residual : 1, needs_statistics : 1;
    // The other fields.
    const void* residual;
    void* sum;
    float* mean;
    float* rstd;
    uint32_t residual_stride, padding;
};

// The granularity of the quantization scale, if the result is quantized.
enum class Codes : int32_t { none, tensor, row, group };

// A norm with everything that may precede and follow it:
// z = dropout(x + x_bias) + residual, n = (z - mean) rstd (weight, + 1 if gemma) + bias, y = n silu(gate), quantized y smooth.
struct FusedArguments {
    StridedRows x, residual, gate;  // residual.data and gate.data may be null
    void* y;                        // rows of y_columns, zero past `columns`; or null
    void* sum;                      // z, or null
    float* mean;                    // or null, like rstd
    float* rstd;
    const void* weight;  // of parameter_type or null, like bias and x_bias
    const void* bias;
    const void* x_bias;
    const float* smooth;  // or null
    Dropout dropout;
    RowCounts rows;
    uint32_t columns, y_columns;
    ElementType parameter_type;
    float epsilon;
    uint32_t workers;  // worker w processes rows w, w + workers, ...
    int32_t wide;  // rows that are read, and those of sum, are whole chunks of 8 elements and 4-byte aligned
    int32_t wide_parameters, wide_y;
    int32_t centred;              // 0: the mean is taken as zero
    int32_t gemma;                // the weight is stored minus 1
    int32_t round_before_weight;  // rounds n to the element's type before applying weight
    int32_t round_sum;            // rounds z to it before the norm; otherwise only when it is stored
    float per_column;             // 1 / columns
    Codes codes;
    quantize::QuantizeArguments quantization;  // x is not set
};

// A single grid: workgroups with y = 1 process the second norm. If there is none, its columns are 0.
struct FusedPair {
    FusedArguments first, second;
};

struct BackwardArguments {
    RowTensor dy, dsum, z;  // dsum.data may be null
    const float* mean;      // null: rms_norm
    const float* rstd;
    const void* weight;
    void* dx;               // the gradient of x: dresidual after the gradient of dropout
    void* dresidual;        // null without dropout: equal to dx
    float* partial_weight;  // [workgroups][cols], or null
    float* partial_bias;
    Dropout dropout;
    Rows rows;
    ElementType parameter_type;
    uint32_t workers;
    int32_t wide;
    int32_t wide_parameters;
    int32_t plain;  // wide, one dimension of rows, a weight of the element's type, no dropout
    float per_column;
};

// Adds the workers' partial sums, in a fixed order.
struct ReduceArguments {
    const float* partial[2];
    void* result[2];
    uint32_t workers;
    int32_t cols;
    ElementType type;
    int32_t padding[5];
};

}  // namespace hipkittens::norm
