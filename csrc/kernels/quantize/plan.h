// kernels/quantize/plan.h: from what is to be quantised to launches.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <vector>

#include "../launch.h"
#include "kinds.h"

namespace hipkittens::quantize {

// What shares a scale.
enum class Granularity { tensor, row, group };

// Bytes or floats of scales that `plan` has written. group: columns of one; rows and groups as padding makes them.
struct ScaleCount {
    int64_t rows, groups;
};
// Throws std::invalid_argument for what no kernel takes.
ScaleCount scale_count(int64_t rows, int64_t columns, Granularity granularity, int64_t group,
                       ScaleLayout layout);

// Floats of workspace, for `maxima`.
uint32_t maxima_count(int64_t rows, int64_t columns);

// With groups, their lanes and padding set, which follow from rows, columns and layout.
QuantizeArguments laid_out(Granularity granularity, int64_t group, QuantizeArguments arguments);

// In order, on one stream. gated: activation(x) times other, whose tensor has no scale of its own but a given one. Of the arguments,
// x, other, codes, scales, given, maxima, rows, columns, aligned, the activation and what says how a scale and a code
// are made are the caller's; the rest is decided here.
std::vector<Launch> plan(int target, ElementType element, Granularity granularity, int64_t group, bool gated,
                         QuantizeArguments arguments);

}  // namespace hipkittens::quantize
