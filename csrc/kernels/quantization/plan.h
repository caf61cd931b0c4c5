// kernels/quantization/plan.h: how many scales there are, and how groups of columns are shared by threads.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "arguments.h"

namespace hipkittens::quantize {

// What shares a scale.
enum class Granularity { tensor, row, group, block };

// Bytes or floats of scales that `plan` has written. group: columns of one; rows and groups as padding makes them.
struct ScaleCount {
    int64_t rows, groups;
};
// Throws std::invalid_argument for what no kernel takes. matrix_rows: of blocks, rows of each matrix.
ScaleCount scale_count(int64_t rows, int64_t columns, Granularity granularity, int64_t group,
                       ScaleLayout layout, int64_t matrix_rows = 0);
// Shuffled scales of rows in bands that begin with each of so many ranges.
ScaleCount banded_scales(int64_t rows, int64_t ranges, int64_t groups);

// Threads of eight columns each that hold a row, whole groups of them.
int64_t group_threads(int64_t columns, int64_t padded_groups, int64_t group);

// With groups, their lanes and padding set, which follow from rows, columns and layout.
QuantizeArguments laid_out(Granularity granularity, int64_t group, QuantizeArguments arguments);

}  // namespace hipkittens::quantize
