// kernels/cache/plan.h: plans the launch of a write of rows to their slots.
// SPDX-License-Identifier: MIT
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>

#include "../launch.h"
#include "kinds.h"

namespace hipkittens::cache {

// The caller sets all arguments except `together`. Throws std::invalid_argument if no kernel supports them.
inline Launch plan(int target, ElementType element, CopyArguments arguments) {
    int64_t workgroups = 0;
    for (Copy& copy : arguments.copies) {
        // If the features of a token are not contiguous, those of tokens in adjacent slots are between them: 16 tokens are
        // the usual block size.
        copy.together = 0;
        while (copy.to.to.feature != 1 && copy.together < 4 && (1u << copy.together) < arguments.tokens)
            ++copy.together;
        const int64_t chunks = (int64_t{copy.features} + thread_features - 1) / thread_features;
        const int64_t tokens = ((int64_t{arguments.tokens} - 1) >> copy.together) + 1;
        const int64_t rows = (tokens << copy.together) * copy.heads;
        // HIP counts the threads of a grid dimension in 32 bits.
        if (rows > (int64_t{UINT32_MAX} - threads) / std::max<int64_t>(chunks, 1))
            throw std::invalid_argument("cache_write: " + std::to_string(arguments.tokens) + " tokens of " +
                                        std::to_string(copy.heads) + " heads of " +
                                        std::to_string(copy.features) +
                                        " features; at most 34359736320 elements are allowed");
        workgroups = std::max(workgroups, (rows * chunks + threads - 1) / threads);
        // A part without features has no threads with work: any divisor works.
        copy.chunks = divisor_of(static_cast<uint32_t>(std::max<int64_t>(chunks, 1)));
        copy.units = divisor_of(static_cast<uint32_t>(std::max<int64_t>(chunks * copy.heads, 1)));
    }
    if (workgroups == 0) throw std::invalid_argument("cache_write: nothing to write");
    for (const Row<kinds::copy>& row : variants<kinds::copy>)
        if (row.config.element == element)
            return launch_of("cache", row.name, target, {static_cast<uint32_t>(workgroups), 2, 1}, threads,
                             arguments);
    throw std::invalid_argument("cache_write: no kernel has this element type");
}

inline constexpr uint32_t most_scaled_features = 64 * thread_features;  // per head: held by one wave

// Sets lane_shift and head_count. group_shift is set by the caller: 2 .. 4 for groups, 6 for a whole head.
inline Launch plan(int target, ElementType element, ScaledArguments arguments) {
    int64_t workgroups = 0;
    for (ScaledPart& part : arguments.parts) {
        if (part.features > most_scaled_features)
            throw std::invalid_argument("cache_write: a head has " + std::to_string(part.features) +
                                        " features; with scales of their own 1 .. " +
                                        std::to_string(most_scaled_features) + " are allowed");
        part.lane_shift = 2;
        while ((thread_features << part.lane_shift) < static_cast<int>(part.features)) ++part.lane_shift;
        part.lane_shift = std::max(part.lane_shift, part.group_shift < 6 ? part.group_shift : 0u);
        part.group_shift = std::min(part.group_shift, part.lane_shift);
        part.head_count = divisor_of(std::max(part.heads, 1u));
        const int64_t rows = int64_t{arguments.tokens} * part.heads;
        if (rows > (int64_t{UINT32_MAX} - threads) >> part.lane_shift)
            throw std::invalid_argument("cache_write: " + std::to_string(arguments.tokens) + " tokens of " +
                                        std::to_string(part.heads) + " heads; that is too many");
        workgroups = std::max(workgroups, ((rows << part.lane_shift) + threads - 1) / threads);
    }
    const uint32_t parts = arguments.parts[1].heads ? 2 : 1;
    for (const Row<kinds::scaled>& row : variants<kinds::scaled>)
        if (row.config.element == element && workgroups > 0)
            return launch_of("cache", row.name, target, {static_cast<uint32_t>(workgroups), parts, 1},
                             threads, arguments);
    throw std::invalid_argument("cache_write: no kernel has this element type, or there is nothing to write");
}

// Sets chunks, by_place, token_run and head_step.
inline Launch plan(int target, ElementType element, SharedArguments arguments) {
    uint32_t heads = 0;
    for (SharedPart& part : arguments.parts) {
        part.chunks = divisor_of((part.features + thread_features - 1) / thread_features);
        part.by_place = part.to.to.feature != 1;
        heads = std::max(heads, part.heads);
    }
    if (arguments.group.value > most_shared_slots)
        throw std::invalid_argument("cache_write: " + std::to_string(arguments.group.value) +
                                    " slots share a scale; 1 .. " + std::to_string(most_shared_slots) +
                                    " are allowed");
    if (arguments.tokens > static_cast<uint32_t>(INT32_MAX) / threads)
        throw std::invalid_argument("cache_write: " + std::to_string(arguments.tokens) +
                                    " tokens; with scales of groups 8388607 are allowed");
    // Few tokens have too few groups to fill a GPU. With many, each workgroup searches all slots for its group's tokens, so its
    // heads share that work.
    constexpr uint32_t workgroups = 4096;
    arguments.head_step = std::clamp(workgroups / std::max(arguments.tokens, 1u), 1u,
                                     std::max((heads + shared_waves - 1) / shared_waves, 1u));
    arguments.token_run = (arguments.tokens + shared_runs - 1) / shared_runs;
    const uint32_t runs = std::min(arguments.tokens, shared_runs);
    for (const Row<kinds::shared_scale>& row : variants<kinds::shared_scale>)
        if (row.config.element == element && arguments.tokens > 0 && heads > 0)
            return launch_of("cache", row.name, target, {runs * arguments.token_run, arguments.head_step, 2},
                             threads, arguments);
    throw std::invalid_argument("cache_write: no kernel has this element type, or there is nothing to write");
}

}  // namespace hipkittens::cache
