// kernels/quantize/plan.h: plans the launches of a quantization.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "../launch.h"
#include "../quantization/plan.h"
#include "kinds.h"

namespace hipkittens::quantize {

struct Places {
    const int32_t* data;
    bool codes_of_tokens;  // TokenQuantizeArguments; for what reads each token once alone
};

// Floats of workspace, for `maxima`.
uint32_t maxima_count(int64_t rows, int64_t columns);

// In order, on one stream. gated: activation(x) times other; with one scale per tensor, that scale must be given. The caller sets x,
// other, codes, scales, given, maxima, rows, columns, aligned, the activation and the parameters of scales and quantized values; the
// other arguments are set here.
// ranges: group scales are in bands that start anew with each range of rows; the host knows only the number of ranges.
// places: if arguments have entries, the row of each choice of the tokens. They contain the same information as entries, and
// let some kernels read each token once.
std::vector<Launch> plan(int target, ElementType element, Granularity granularity, int64_t group, bool gated,
                         QuantizeArguments arguments, const std::optional<RangeEnds>& ranges = {},
                         const std::optional<Places>& places = {});

// Sets `padded_columns`.
Launch plan_bands(int target, BandsArguments arguments);

}  // namespace hipkittens::quantize
