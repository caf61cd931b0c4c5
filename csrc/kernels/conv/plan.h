// kernels/conv/plan.h: from a causal convolution to its launches.
// SPDX-License-Identifier: MIT
#pragma once
#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "../launch.h"
#include "kinds.h"

namespace hipkittens::conv {

namespace plan_detail {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The one of most channels of a thread. aligned: every row, the weights and the states begin on 4 bytes.
template <class Kind>
const Row<Kind>& row_for(int target, ElementType element, bool channels_last, int64_t channels,
                         bool aligned) {
    const Row<Kind>* best = nullptr;
    for (const Row<Kind>& row : variants<Kind>)
        if (includes(row.targets, target) && row.config.element == element &&
            row.config.channels_last == channels_last &&
            (row.config.channels == 1 || (aligned && channels % row.config.channels == 0)) &&
            (!best || row.config.channels > best->config.channels))
            best = &row;
    if (!best) throw std::invalid_argument("conv: no kernel has this element type");
    return *best;
}

}  // namespace plan_detail

// Of sequences of one length, the tiles of each; of packed ones as many as they need wherever they begin, what is behind the last
// one counted as one more: floor(total / tile) + their number (kernels/conv/tiles.h).
constexpr int64_t slots(int64_t sequences, int64_t length, bool packed) {
    return packed ? length / tile + sequences + 1 : sequences * plan_detail::divide_up(length, tile);
}

// Throws std::invalid_argument. HIP counts the threads of a grid dimension in 32 bits.
inline void check(int64_t sequences, int64_t length, int64_t channels, int64_t width, bool packed) {
    if (width < smallest_width || width > largest_width)
        throw std::invalid_argument("conv: width is " + std::to_string(width) + "; allowed: " +
                                    std::to_string(smallest_width) + " .. " + std::to_string(largest_width));
    constexpr int64_t largest = UINT32_MAX - threads;
    const int64_t all = slots(sequences, length, packed);
    if (length > INT32_MAX - tile || channels > INT32_MAX / (largest_width + 1) || all > largest ||
        (all > 0 && channels > largest / all))
        throw std::invalid_argument("conv: " + std::to_string(channels) + " channels of " +
                                    std::to_string(sequences) + " sequences of " + std::to_string(length) +
                                    " times; 1 .. " + std::to_string(largest) +
                                    " are allowed of channels x tiles of " + std::to_string(tile) + " times");
}

// slots of the sequences is decided here, and whether rows are aligned by the caller. Throws std::invalid_argument.
inline Launch plan_forward(int target, ElementType element, bool channels_last, bool aligned,
                           ForwardArguments arguments) {
    Sequences& sequences = arguments.sequences;
    check(sequences.count, sequences.length, arguments.channels, arguments.width,
          sequences.starts != nullptr);
    const int64_t count = slots(sequences.count, sequences.length, sequences.starts != nullptr);
    sequences.slots = static_cast<uint32_t>(count);
    uint32_t together = arguments.channels;  // a thread's channels have one result
    for (const uint32_t end : arguments.ends)
        together = std::gcd(together, std::min(end, arguments.channels));
    const auto& row = plan_detail::row_for<kinds::forward>(target, element, channels_last, together, aligned);
    const int64_t lanes = count * (arguments.channels / row.config.channels);
    return launch_of("conv", row.name, target,
                     {static_cast<uint32_t>(plan_detail::divide_up(lanes, threads)), 1, 1}, threads,
                     arguments);
}

// So many share the tiles of a channel: enough to fill a device and no more, since each leaves sums of its own. Depends on the
// problem alone, so that sums do, too.
constexpr int64_t workers(int64_t slots, int64_t channels, bool channels_last) {
    constexpr int64_t enough_threads = int64_t{1} << 17, usual_channels = 4;  // of a thread
    const int64_t threads_of_worker =
        channels_last ? plan_detail::divide_up(channels, usual_channels) : channels * 64;
    const int64_t most = channels_last ? slots : plan_detail::divide_up(slots, 64);
    return std::clamp<int64_t>(plan_detail::divide_up(enough_threads, threads_of_worker), 1, most);
}

// In order. Throws std::invalid_argument.
inline std::vector<Launch> plan_backward(int target, ElementType element, bool channels_last, bool aligned,
                                         BackwardArguments arguments, void* dweight, void* dbias) {
    Sequences& sequences = arguments.sequences;
    check(sequences.count, sequences.length, arguments.channels, arguments.width,
          sequences.starts != nullptr);
    const int64_t count = slots(sequences.count, sequences.length, sequences.starts != nullptr);
    sequences.slots = static_cast<uint32_t>(count);
    arguments.workers = static_cast<uint32_t>(workers(count, arguments.channels, channels_last));
    const auto& row =
        plan_detail::row_for<kinds::backward>(target, element, channels_last, arguments.channels, aligned);
    const int64_t lanes =
        int64_t{arguments.workers} * (channels_last ? 1 : 64) * (arguments.channels / row.config.channels);
    std::vector<Launch> launches = {
        launch_of("conv", row.name, target,
                  {static_cast<uint32_t>(plan_detail::divide_up(lanes, threads)), 1, 1}, threads, arguments)};
    const ReduceArguments reduce = {arguments.partial,  dweight,         dbias, arguments.workers,
                                    arguments.channels, arguments.width, 0};
    const uint32_t sums = (arguments.width + 1) * arguments.channels;
    for (const Row<kinds::reduce>& each : variants<kinds::reduce>)
        if (includes(each.targets, target) && each.config.element == element)
            launches.push_back(launch_of("conv", each.name, target, {(sums + threads - 1) / threads, 1, 1},
                                         threads, reduce));
    return launches;
}

}  // namespace hipkittens::conv
