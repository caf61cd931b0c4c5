// kernels/conv/plan.h: plans the launches of a causal convolution.
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

// The variant with the most channels per thread. aligned: every row, the weights and the states are 4-byte aligned.
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

// A row of updates, or none: for width 4 in decoding without a ring, rejected times or states to be zeroed, where rows and states
// are 4-byte aligned and all strides fit in 32 bits. `together` channels have one result.
inline const Row<kinds::update>* update_row(int target, ElementType element, int64_t together,
                                            const ForwardArguments& arguments) {
    const States& states = arguments.states;
    const Sequences& sequences = arguments.sequences;
    if (!states.data || states.present || states.positions || states.accepted || sequences.starts ||
        sequences.length != 1 || arguments.width != update_width)
        return nullptr;
    for (const int64_t stride : {arguments.x.sequence, arguments.y[0].sequence, arguments.y[1].sequence,
                                 arguments.y[2].sequence, states.slot, states.column})
        if (stride < 0 || stride > UINT32_MAX) return nullptr;
    // HIP's limit on workgroups in the second grid dimension; and bytes of a slot or the weights must fit in 32 bits.
    constexpr int64_t most = int64_t{1} << 27;
    if (sequences.count > 65535 || arguments.channels > most || states.column > most) return nullptr;
    const int64_t unit = element == ElementType::f32 ? 1 : 2;
    if (reinterpret_cast<uintptr_t>(states.data) % 4 || states.slot % unit) return nullptr;
    for (const Row<kinds::update>& row : variants<kinds::update>) {
        const UpdateConfig& config = row.config;
        const bool laid_out =
            config.channels_last
                ? states.channel == 1 && states.column % unit == 0
                : states.column == 1 && states.channel == static_cast<int64_t>(states.columns);
        if (includes(row.targets, target) && config.element == element &&
            config.columns == static_cast<int>(states.columns) && laid_out && together % config.channels == 0)
            return &row;
    }
    return nullptr;
}
inline UpdateArguments update_arguments(const ForwardArguments& from) {
    const States& states = from.states;
    UpdateArguments arguments{};
    arguments.x = from.x.data;
    arguments.states = states.data;
    arguments.weight = from.weight;
    arguments.bias = from.bias;
    arguments.slots = states.slots;
    arguments.x_sequence = static_cast<uint32_t>(from.x.sequence);
    arguments.slot = static_cast<uint32_t>(states.slot);
    arguments.column = static_cast<uint32_t>(states.column);
    arguments.channels = from.channels;
    for (uint32_t i = 0; i < most_results; ++i) {
        arguments.y[i] = const_cast<void*>(from.y[i].data);
        arguments.y_sequence[i] = static_cast<uint32_t>(from.y[i].sequence);
    }
    std::copy(std::begin(from.ends), std::end(from.ends), arguments.ends);
    arguments.count = states.count;
    arguments.silu = from.silu;
    return arguments;
}

}  // namespace plan_detail

// For sequences of one length, the tiles of each; for packed ones, enough for any beginnings, with the times after the last one
// counted as one more sequence: floor(total / tile) + their number (kernels/conv/tiles.h).
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

// Sets the slots of the sequences; the caller determines whether rows are aligned. Throws std::invalid_argument.
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
    if (channels_last && aligned)
        if (const auto* row = plan_detail::update_row(target, element, together, arguments)) {
            const int64_t lanes = arguments.channels / row->config.channels;
            return launch_of(
                "conv", row->name, target,
                {static_cast<uint32_t>(plan_detail::divide_up(lanes, update_threads)), sequences.count, 1},
                update_threads, plan_detail::update_arguments(arguments));
        }
    const auto& row = plan_detail::row_for<kinds::forward>(target, element, channels_last, together, aligned);
    const int64_t lanes = count * (arguments.channels / row.config.channels);
    return launch_of("conv", row.name, target,
                     {static_cast<uint32_t>(plan_detail::divide_up(lanes, threads)), 1, 1}, threads,
                     arguments);
}

// The number of workers that share the tiles of a channel: enough to fill a device and no more, since each stores its own
// sums. It depends on the problem alone, so that the sums do as well.
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
