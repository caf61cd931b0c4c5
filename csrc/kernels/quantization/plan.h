// kernels/quantization/plan.h: the number of scales, and how threads share groups of columns.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "arguments.h"

namespace hipkittens::quantize {

// The extent that shares a scale.
enum class Granularity { tensor, row, group, block };

// Bytes or floats of scales that `plan` writes. group: columns per scale; rows and groups include padding.
struct ScaleCount {
    int64_t rows, groups;
};
// Throws std::invalid_argument if no kernel supports them. matrix_rows: for blocks, the rows of each matrix.
ScaleCount scale_count(int64_t rows, int64_t columns, Granularity granularity, int64_t group,
                       ScaleLayout layout, int64_t matrix_rows = 0);
// Shuffled scales of rows in bands that start anew with each of this many ranges.
ScaleCount banded_scales(int64_t rows, int64_t ranges, int64_t groups);

// Threads with eight columns each that hold a row, in whole groups.
int64_t group_threads(int64_t columns, int64_t padded_groups, int64_t group);

// Sets groups, their lanes and padding, which follow from rows, columns and layout.
QuantizeArguments laid_out(Granularity granularity, int64_t group, QuantizeArguments arguments);

}  // namespace hipkittens::quantize
