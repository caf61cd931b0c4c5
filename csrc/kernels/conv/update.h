// kernels/conv/update.h: sequences that continue by one time step; each lane has adjacent channels of one of them.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/global_layout.h"
#include "../../tiles/memory_intrinsics.h"
#include "tiles.h"

namespace hipkittens::conv {

template <UpdateConfig config>
struct Update {
    using T = typename element_of<config.element>::value;
    static constexpr int channels = config.channels, columns = config.columns;
    using Value = kittens::vec<float, channels>;
    using Stored = kittens::vec<T, channels>;
    typedef Stored vector __attribute__((aligned(4)));
    static constexpr uint32_t size = sizeof(T);
    static constexpr bool accurate = !kittens::is_16bit<T>;
    static constexpr int threads = update_threads, waves_per_simd = 8, lds_bytes = 0;
    // The columns of the states that precede the time.
    static constexpr int before = update_width - 1, beyond = columns - before;

    KITTENS_DEVICE static Value widened(Stored value) { return __builtin_convertvector(value, Value); }

    // Apart from the slot, no load depends on another one: with few sequences, a step takes as long as its latencies.
    KITTENS_DEVICE static void run(const UpdateArguments& arguments) {
        const uint32_t sequence = kittens::workgroup_id_y();
        const uint32_t first = (kittens::workgroup_id_x() * threads + kittens::thread_id()) * channels;
        if (first >= arguments.channels) return;
        uint32_t slot = sequence;
        bool exists = true;
        // Marked as equally likely, so that neither side is placed far away, where it would have to be fetched.
        if (__builtin_expect_with_probability(arguments.slots != nullptr, true, 0.5)) {
            slot = ((global<const int32_t>)arguments.slots)[sequence];
            exists = slot < arguments.count;
        }
        // Columns of the state, followed by the input.
        const auto* states = static_cast<const T*>(arguments.states) + uint64_t{slot} * arguments.slot;
        const kittens::buffer state = or_empty(states, exists, kittens::largest_buffer);
        Stored inputs[columns + 1];
        load_state(arguments, state, first, inputs);
        inputs[columns] =
            *at(static_cast<const T*>(arguments.x) + uint64_t{sequence} * arguments.x_sequence, first);
        Stored weight[update_width];
        const auto own_weight = at(static_cast<const T*>(arguments.weight), first * update_width);
#pragma unroll
        for (int i = 0; i < update_width; ++i) weight[i] = own_weight[i];
        const auto bias = kittens::buffer_load<Stored>(
            or_empty(arguments.bias, arguments.bias, arguments.channels * size), first * size);
        // While the loads are in flight.
        global<T> to = result(arguments, sequence, first);
        kittens::materialize(to);
        const bool silu = arguments.silu;
        store_state(arguments, state, first, inputs);
        // Widened before they are rearranged by columns, which is then free.
        Value in_order[update_width], taps[update_width];
#pragma unroll
        for (int j = 0; j < update_width; ++j) in_order[j] = widened(weight[j]);
        transpose<channels>(in_order, taps);
        Value y = widened(bias);
#pragma unroll
        for (int j = 0; j < update_width; ++j) y = fused(taps[j], widened(inputs[beyond + j]), y);
        if (silu) y = activated<accurate>(y);
        if (!exists) y = 0.0f;
        *(global<vector>)to = __builtin_convertvector(y, Stored);
    }

  private:
    // From an address shared by all lanes, at `offset` elements, less than 2^32 bytes: plan.h.
    KITTENS_DEVICE static global<const vector> at(const T* from, uint32_t offset) {
        return (global<const vector>)((global<const char>)from + offset * size);
    }
    // Without a branch: loads from an empty buffer return 0, and stores to it are dropped.
    KITTENS_DEVICE static kittens::buffer or_empty(const void* data, bool exists, uint32_t bytes) {
        return {static_cast<const char*>(data), exists ? bytes : 0};
    }
    // Bytes into a slot: of the i-th vector of a lane, which is a column, or the next vector in memory order.
    KITTENS_DEVICE static uint32_t offset(const UpdateArguments& arguments, uint32_t first, int i) {
        return config.channels_last ? (first + i * arguments.column) * size
                                    : (first * columns + i * channels) * size;
    }
    // If there are more columns than precede the time, the first one is skipped.
    KITTENS_DEVICE static void load_state(const UpdateArguments& arguments, kittens::buffer state,
                                          uint32_t first, Stored (&inputs)[columns + 1]) {
        constexpr int none = config.channels_last ? beyond : 0;
        Stored values[columns], by_column[columns];
#pragma unroll
        for (int i = none; i < columns; ++i)
            values[i] = kittens::buffer_load<Stored>(state, offset(arguments, first, i));
        if constexpr (!config.channels_last) transpose<channels>(values, by_column);
#pragma unroll
        for (int j = beyond; j < columns; ++j) inputs[j] = config.channels_last ? values[j] : by_column[j];
    }
    KITTENS_DEVICE static void store_state(const UpdateArguments& arguments, kittens::buffer state,
                                           uint32_t first, const Stored (&inputs)[columns + 1]) {
        Stored next[columns], in_order[columns];
#pragma unroll
        for (int j = 0; j < columns; ++j) next[j] = inputs[j + 1];
        if constexpr (!config.channels_last) transpose_back<channels>(next, in_order);
#pragma unroll
        for (int i = 0; i < columns; ++i)
            kittens::buffer_store(config.channels_last ? next[i] : in_order[i], state,
                                  offset(arguments, first, i));
    }
    // The location of the lane's channels in the result.
    KITTENS_DEVICE static global<T> result(const UpdateArguments& arguments, uint32_t sequence,
                                           uint32_t first) {
        void* y = arguments.y[0];
        uint32_t stride = arguments.y_sequence[0], begin = 0;
#pragma unroll
        for (uint32_t i = 1; i < most_results; ++i)
            if (first >= arguments.ends[i - 1])
                y = arguments.y[i], stride = arguments.y_sequence[i], begin = arguments.ends[i - 1];
        return (global<T>)y + uint64_t{sequence} * stride + (first - begin);
    }
};

}  // namespace hipkittens::conv
