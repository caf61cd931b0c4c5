// kernels/quantize/plan.h: from what is to be quantised to launches.
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

// In order, on one stream. gated: activation(x) times other, whose tensor has no scale of its own but a given one. Of the arguments,
// x, other, codes, scales, given, maxima, rows, columns, aligned, the activation and what says how a scale and a code
// are made are the caller's; the rest is decided here.
// ranges: scales of groups are in bands that begin with each range of rows, of which the host knows the number alone.
// places: of each choice of so many tokens, where arguments have entries, its row. They say what entries say, and some kernels then read
// each token once.
std::vector<Launch> plan(int target, ElementType element, Granularity granularity, int64_t group, bool gated,
                         QuantizeArguments arguments, const std::optional<RangeEnds>& ranges = {},
                         const std::optional<Places>& places = {});

// `padded_columns` is decided here.
Launch plan_bands(int target, BandsArguments arguments);

}  // namespace hipkittens::quantize
