// kernels/delta_rule/plan.h: plans the launches of a gated delta rule from its arguments.
// SPDX-License-Identifier: MIT
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "../device_shape.h"
#include "../launch.h"
#include "kinds.h"

namespace hipkittens::delta_rule {

inline constexpr int64_t largest_key = 256;
// Fewer tokens than this do not justify two launches and matrices that are mostly padding.
inline constexpr int64_t fewest_chunked_tokens = 17;

// The largest key size that a kind has kernels for, or 0.
template <class Kind>
int largest_key_of(int target, ElementType element) {
    int largest = 0;
    for (const Row<Kind>& row : variants<Kind>)
        if (includes(row.targets, target) && row.config.element == element)
            largest = std::max(largest, row.config.key);
    return largest;
}

// Whether a problem is processed chunk by chunk, in rows of scan or channel_scan.
template <class Kind>
bool runs_in_chunks(int target, ElementType element, int64_t tokens, int64_t key) {
    return tokens >= fewest_chunked_tokens && key <= largest_key_of<Kind>(target, element);
}

// Throws std::invalid_argument with a message that begins with `where`.
inline void check(const std::string& where, int64_t sequences, int64_t tokens, int64_t heads, int64_t key,
                  int64_t value) {
    const auto refuse = [&](const std::string& what) { throw std::invalid_argument(where + what); };
    if (key < 1 || key > largest_key)
        refuse("keys have " + std::to_string(key) + " elements; 1 to " + std::to_string(largest_key) +
               " are allowed");
    if (value < 1) refuse("values need at least 1 element");
    const int64_t units = sequences * heads * ((value + step_values - 1) / step_values),
                  chunks = (tokens / chunk_tokens + 1 + sequences) * heads;
    if (sequences > INT32_MAX || units > INT32_MAX || chunks > INT32_MAX || tokens > INT32_MAX)
        refuse("up to 2^31 - 1 tokens, and pieces of states, are allowed");
}

template <class Kind, class Matches>
const Row<Kind>& row_with_key(int target, uint32_t key, const Matches& matches) {
    // Rows of one element are ordered by their key size.
    for (const Row<Kind>& row : variants<Kind>)
        if (includes(row.targets, target) && row.config.key >= static_cast<int>(key) && matches(row.config))
            return row;
    throw std::invalid_argument("delta_rule: no kernel has these element types");
}

// For step and channel_step; sets `slices`.
template <class Kind>
Launch plan_step(int target, ElementType element, ElementType state, bool value_by_value,
                 StepArguments arguments) {
    arguments.slices = divisor_of((arguments.value + step_values - 1) / step_values);
    const auto& row = row_with_key<Kind>(target, arguments.key, [&](const StepConfig& config) {
        return config.element == element && config.state == state && config.value_by_value == value_by_value;
    });
    return launch_of("delta_rule", row.name, target,
                     {arguments.slices.value * arguments.heads.value * arguments.sequences.count, 1, 1},
                     step_threads(row.config), arguments);
}

// Upper bound of the chunks of `sequences`; `tokens` of each, or of all packed ones together.
inline Chunks chunks_of(const Sequences& sequences, int64_t tokens) {
    Chunks chunks{sequences, divisor_of(1), 0};
    if (sequences.starts) {
        chunks.count = static_cast<uint32_t>(tokens / chunk_tokens) + sequences.count;
    } else {
        const uint32_t each = static_cast<uint32_t>((tokens + chunk_tokens - 1) / chunk_tokens);
        chunks.per_sequence = divisor_of(std::max(each, 1u));
        chunks.count = each * sequences.count;
    }
    return chunks;
}

// The number of keys in a chunk's ChannelOperands.
inline int64_t operand_keys(int target, ElementType element, uint32_t key) {
    return row_with_key<kinds::channel_prepare>(
               target, key, [&](const PrepareConfig& config) { return config.element == element; })
        .config.key;
}

// For prepare, channel_prepare and gradient: one workgroup per chunk of each value head.
template <class Kind>
Launch plan_of_chunks(int target, ElementType element, const Chunks& chunks, uint32_t heads, uint32_t key,
                      int threads, const typename Kind::Arguments& arguments) {
    const auto& row = row_with_key<Kind>(
        target, key, [&](const PrepareConfig& config) { return config.element == element; });
    return launch_of("delta_rule", row.name, target, {chunks.count * heads, 1, 1}, threads, arguments);
}

// For scan, channel_scan and reverse; sets `slices` and `xcds`. Wide slices read a chunk's matrices less often, narrow ones occupy more
// compute units.
template <class Kind>
Launch plan_of_states(int target, const DeviceShape& device, ElementType element, int threads,
                      typename Kind::Arguments arguments) {
    const ChunkArguments& common = arguments.common;
    const auto slices = [&](int columns) {
        return (common.value + static_cast<uint32_t>(columns) - 1) / static_cast<uint32_t>(columns);
    };
    const uint32_t states = common.heads.value * common.chunks.sequences.count;
    const Row<Kind>* chosen = nullptr;
    for (const Row<Kind>& row : variants<Kind>) {
        if (!includes(row.targets, target) || row.config.element != element ||
            row.config.key < static_cast<int>(common.key) || (chosen && chosen->config.key < row.config.key))
            continue;
        if (!chosen || states * slices(row.config.columns) >= static_cast<uint32_t>(device.compute_units))
            chosen = &row;
    }
    if (!chosen)
        throw std::invalid_argument("gated_delta_rule: no kernel has keys of " + std::to_string(common.key) +
                                    " elements");
    arguments.slices = divisor_of(slices(chosen->config.columns));
    const uint32_t xcds = static_cast<uint32_t>(std::max(device.xcds, 1));
    arguments.xcds = divisor_of(states % xcds == 0 ? xcds : 1);
    return launch_of("delta_rule", chosen->name, target, {arguments.slices.value * states, 1, 1}, threads,
                     arguments);
}

}  // namespace hipkittens::delta_rule
