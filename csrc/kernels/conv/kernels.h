// kernels/conv/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "tiles.h"
#include "update.h"

#define PRELOADS_update 1

namespace hipkittens::conv {

template <ConvConfig config>
struct Forward {
    using T = typename element_of<config.element>::value;
    using Channels = Lane<config, config.channels>;
    using Value = typename Channels::Value;
    using Stored = typename Channels::Stored;
    static constexpr bool accurate = !kittens::is_16bit<T>;
    static constexpr int threads = conv::threads, waves_per_simd = config.channels_last ? 3 : 4,
                         lds_bytes = 0;

    KITTENS_DEVICE static void run(const ForwardArguments& arguments) {
        const Channels lane(kittens::workgroup_id_x() * threads + kittens::thread_id(),
                            arguments.sequences.slots, arguments.channels);
        if (lane.none() || lane.row >= arguments.sequences.slots) return;
        const Tile at = tile_of(arguments.sequences, lane.row);
        // An empty sequence has a state as well.
        if (at.first > 0 && at.first >= at.length) return;
        const States& states = arguments.states;
        bool skipped = at.sequence == arguments.sequences.count;
        uint32_t slot = 0;
        if (states.data && !skipped) {
            slot = states.slots ? ((global<const int32_t>)states.slots)[at.sequence] : at.sequence;
            skipped = slot >= states.count;
        }
        if (skipped) {
            if (at.first < at.length)
                lane.store_tile(result_of(arguments, lane), at, [](int) { return Value(0.0f); });
            return;
        }
        with_width(arguments.width, [&](auto constant) {
            constexpr int width = decltype(constant)::value, before = width - 1;
            Stored inputs[before + tile], taps[width];
            lane.template load_tile<before>(arguments.x, at, inputs);
            lane.load_weight(arguments.weight, taps);
            Value bias = 0.0f;
            if (arguments.bias) bias = lane.load_channel(arguments.bias);
            if (states.data && at.first == 0) resume<before>(lane, arguments, at, slot, inputs);
            if (at.first >= at.length) return;
            const bool silu = arguments.silu;
            lane.store_tile(result_of(arguments, lane), at, [&](int i) {
                const Value pre = convolved<Channels>(inputs + i, taps, bias);
                if (!silu) return pre;
                return activated<accurate>(pre);
            });
        });
    }

    // The result that contains the lane's channels, with its base moved to where channel 0 would be.
    KITTENS_DEVICE static Sequenced result_of(const ForwardArguments& arguments, const Channels& lane) {
        Sequenced y = arguments.y[0];
        uint32_t first = 0;
#pragma unroll
        for (uint32_t i = 1; i < most_results; ++i)
            if (lane.first_channel() >= arguments.ends[i - 1])
                y = arguments.y[i], first = arguments.ends[i - 1];
        y.data = static_cast<const T*>(y.data) - (config.channels_last ? int64_t{first} : first * y.row);
        return y;
    }

    // Loads the inputs before the sequence from its state, and stores its new state. One thread does both, so that it reads the old state.
    template <int before>
    KITTENS_DEVICE static void resume(const Channels& lane, const ForwardArguments& arguments, const Tile& at,
                                      uint32_t slot, Stored* inputs) {
        const States& states = arguments.states;
        const bool present = !states.present || ((global<const uint8_t>)states.present)[at.sequence];
        const auto old = [&](uint32_t column) {
            return present ? lane.load_state(states, slot, column) : Stored(static_cast<T>(0.0f));
        };
        const uint32_t length = at.length;
        if (states.positions) {
            const uint32_t columns = states.columns;
            const uint32_t position = ((global<const uint32_t>)states.positions)[at.sequence] % columns;
#pragma unroll
            for (int j = 0; j < before; ++j) inputs[j] = old((position + columns - before + j) % columns);
            for (uint32_t time = length > columns ? length - columns : 0; time < length; ++time)
                lane.store_state(states, slot, (position + time) % columns, lane.load(arguments.x, at, time));
            return;
        }
        // Old columns move down by `shift`, and the last inputs are stored after them.
        uint32_t columns = states.columns, shift = length, first = columns - before;
        if (states.accepted) {
            const int32_t given = ((global<const int32_t>)states.accepted)[at.sequence];
            const uint32_t accepted = given > 1 ? given : 1;
            shift = accepted < length ? accepted : length;
            columns = before - 1 + length;
            first = shift - 1;
        }
#pragma unroll
        for (int j = 0; j < before; ++j) inputs[j] = old(first + j);
        if (columns + 1 == before + length && length <= tile) {
            // With few inputs, as in decoding, everything to be stored is already in registers.
#pragma unroll
            for (int column = 0; column < before - 1 + tile; ++column)
                if (static_cast<uint32_t>(column) < columns)
                    lane.store_state(states, slot, column, inputs[column + 1]);
            return;
        }
        for (uint32_t column = 0; column < columns; ++column)
            lane.store_state(states, slot, column,
                             column + length < columns
                                 ? old(column + shift)
                                 : lane.load(arguments.x, at, column + length - columns));
    }
};

template <ConvConfig config>
struct Backward {
    using T = typename element_of<config.element>::value;
    using Channels = Lane<config, config.channels>;
    using Value = typename Channels::Value;
    using Stored = typename Channels::Stored;
    static constexpr bool accurate = !kittens::is_16bit<T>;
    static constexpr int threads = conv::threads, waves_per_simd = 2, lds_bytes = 0;

    KITTENS_DEVICE static void run(const BackwardArguments& arguments) {
        const uint32_t rows = config.channels_last ? arguments.workers : arguments.workers * 64;
        const Channels lane(kittens::workgroup_id_x() * threads + kittens::thread_id(), rows,
                            arguments.channels);
        if (lane.none() || lane.row >= rows) return;
        with_width(arguments.width, [&](auto constant) {
            constexpr int width = decltype(constant)::value;
            Stored taps[width];
            Value sums[width + 1];
            lane.load_weight(arguments.weight, taps);
            Value bias = 0.0f;
            if (arguments.bias) bias = lane.load_channel(arguments.bias);
#pragma unroll
            for (Value& sum : sums) sum = 0.0f;
            for (uint32_t slot = lane.row; slot < arguments.sequences.slots; slot += rows) {
                const Tile at = tile_of(arguments.sequences, slot);
                if (at.first < at.length) add_tile<width>(lane, arguments, at, taps, bias, sums);
            }
            float* partial =
                arguments.partial + uint64_t{Channels::worker(lane.row)} * (width + 1) * arguments.channels;
#pragma unroll
            for (int j = 0; j <= width; ++j)
                lane.store_sum(partial + uint64_t(j) * arguments.channels, sums[j]);
        });
    }

    template <int width>
    KITTENS_DEVICE static void add_tile(const Channels& lane, const BackwardArguments& arguments,
                                        const Tile& at, const Stored (&taps)[width], Value bias,
                                        Value (&sums)[width + 1]) {
        constexpr int before = width - 1;
        const bool outside = at.sequence == arguments.sequences.count;
        // The gradient of the input of silu, for the tile and for the times after it that depend on the tile's inputs.
        Stored inputs[tile + 2 * before], dy[tile + before];
        Value gradient[tile + before];
        lane.template load_tile<before>(arguments.x, at, inputs);
        lane.template load_tile<0>(arguments.dy, at, dy);
#pragma unroll
        for (int i = 0; i < tile + before; ++i) {
            gradient[i] = Channels::widened(dy[i]);
            if (arguments.silu)
                gradient[i] *= each_channel(convolved<Channels>(inputs + i, taps, bias), [](float pre) {
                    const kittens::Sigmoid s = kittens::sigmoid<accurate>(pre);
                    return s.value * __builtin_fmaf(pre, s.rest, 1.0f);
                });
            // 0 times a non-finite value would not be 0.
            if (outside || at.first + i >= at.length) gradient[i] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < tile; ++i) {
            if (!outside)
#pragma unroll
                for (int j = 0; j < width; ++j)
                    sums[j] = fused(gradient[i], Channels::widened(inputs[i + j]), sums[j]);
            sums[width] += gradient[i];
        }
        lane.store_tile(arguments.dx, at, [&](int i) {
            Value dx = Channels::widened(taps[before]) * gradient[i];
#pragma unroll
            for (int j = 1; j < width; ++j)
                dx = fused(Channels::widened(taps[before - j]), gradient[i + j], dx);
            return dx;
        });
    }
};

template <ElementConfig config>
struct Reduce {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = conv::threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const ReduceArguments& arguments) {
        const uint32_t all = (arguments.width + 1) * arguments.channels;
        const uint32_t position = kittens::workgroup_id_x() * threads + kittens::thread_id();
        if (position >= all) return;
        const uint32_t tap = position / arguments.channels, channel = position - tap * arguments.channels;
        // Every 16th worker's sum, then a tree reduction: the error of a long sum in a single order would be visible.
        constexpr int strands = 16;
        float sums[strands] = {};
        for (uint32_t first = 0; first < arguments.workers; first += strands)
#pragma unroll
            for (int i = 0; i < strands; ++i)
                if (first + i < arguments.workers)
                    sums[i] += ((global<const float>)arguments.partial)[uint64_t{first + i} * all + position];
#pragma unroll
        for (int half = strands / 2; half > 0; half /= 2)
#pragma unroll
            for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
        const float sum = sums[0];
        if (tap < arguments.width)
            ((global<T>)arguments.dweight)[uint64_t{channel} * arguments.width + tap] = static_cast<T>(sum);
        else if (arguments.dbias)
            ((global<T>)arguments.dbias)[channel] = static_cast<T>(sum);
    }
};

}  // namespace hipkittens::conv
