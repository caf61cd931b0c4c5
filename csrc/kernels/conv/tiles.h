// kernels/conv/tiles.h: the location of a thread's tile, and its elements, for one channel or several.
// SPDX-License-Identifier: MIT
#pragma once
#include "../row_columns.h"
#include "arithmetic.h"
#include "kinds.h"

namespace hipkittens::conv {

using kittens::eight;
template <class V>
using global = __attribute__((address_space(1))) V*;

// The tile of a slot: from time `first` on in a sequence of `length` that begins at `begin`. The times after the last packed
// sequence form one more sequence.
struct Tile {
    uint32_t sequence, begin, length, first;
};

// Sequence s has slots from starts[s] / tile + s on, and needs no more than there are up to those of the next one.
KITTENS_DEVICE Tile tile_of(const Sequences& sequences, uint32_t slot) {
    if (!sequences.starts) {
        const uint32_t tiles = (sequences.length + tile - 1) / tile;
        const uint32_t sequence = slot / tiles;
        return {sequence, 0, sequences.length, (slot - sequence * tiles) * tile};
    }
    const auto start = [&](uint32_t sequence) {
        if (sequence > sequences.count) return sequences.length;
        const int32_t given = ((global<const int32_t>)sequences.starts)[sequence];
        const uint32_t from_zero = given > 0 ? given : 0;
        return from_zero < sequences.length ? from_zero : sequences.length;
    };
    uint32_t sequence = 0, beyond = sequences.count + 1;
    while (beyond - sequence > 1) {
        const uint32_t middle = (sequence + beyond) / 2;
        if (start(middle) / tile + middle <= slot)
            sequence = middle;
        else
            beyond = middle;
    }
    const uint32_t begin = start(sequence), end = start(sequence + 1);
    const uint32_t number = slot - (begin / tile + sequence);
    return {sequence, begin, end > begin ? end - begin : 0, number * tile};
}

// Calls visit with the width as a compile-time constant.
template <int value_>
struct Width {
    static constexpr int value = value_;
};
template <class Visit>
KITTENS_DEVICE void with_width(uint32_t width, const Visit& visit) {
    switch (width) {
        case 2:
            return visit(Width<2>());
        case 3:
            return visit(Width<3>());
        default:
            return visit(Width<4>());
    }
}

// For adjacent channels with contiguous columns: converts vectors in memory order to one vector per column.
template <int channels, int columns, class Stored>
KITTENS_DEVICE void transpose(const Stored (&in_order)[columns], Stored (&by_column)[columns]) {
#pragma unroll
    for (int j = 0; j < columns; ++j)
#pragma unroll
        for (int c = 0; c < channels; ++c)
            by_column[j][c] = in_order[(c * columns + j) / channels][(c * columns + j) % channels];
}
// The inverse.
template <int channels, int columns, class Stored>
KITTENS_DEVICE void transpose_back(const Stored (&by_column)[columns], Stored (&in_order)[columns]) {
#pragma unroll
    for (int j = 0; j < columns; ++j)
#pragma unroll
        for (int c = 0; c < channels; ++c)
            in_order[(c * columns + j) / channels][(c * columns + j) % channels] = by_column[j][c];
}

// What a thread has of each time: `channels` adjacent channels, or one if rows are times. `row` is the thread's row in `rows`, which
// the channels share.
template <ConvConfig config, int channels>
class Lane;

// For rows of times. Adjacent threads have adjacent rows.
template <ConvConfig config, int channels>
    requires(!config.channels_last)
class Lane<config, channels> {
    using T = typename element_of<config.element>::value;
    typedef kittens::raw_eight<T> vector __attribute__((aligned(4)));
    static_assert(tile == kittens::chunk_elements);
    uint32_t channel_;
    bool there_;

    KITTENS_DEVICE int64_t offset(const Sequenced& of, const Tile& at, int32_t time) const {
        return of.sequence * at.sequence + of.row * channel_ + at.begin + time;
    }
    KITTENS_DEVICE static bool wide(const void* address) {
        return reinterpret_cast<uint64_t>(address) % 4 == 0;
    }

  public:
    using Value = float;
    using Stored = T;
    KITTENS_DEVICE static Value widened(Stored value) { return static_cast<float>(value); }
    uint32_t row;

    KITTENS_DEVICE Lane(uint32_t thread, uint32_t rows, uint32_t all) {
        channel_ = thread / rows;
        row = thread - channel_ * rows;
        there_ = channel_ < all;
    }
    KITTENS_DEVICE bool none() const { return !there_; }
    KITTENS_DEVICE uint32_t first_channel() const { return channel_; }
    KITTENS_DEVICE static uint32_t worker(uint32_t row) { return row / 64; }

    template <int width>
    KITTENS_DEVICE void load_weight(const void* weight, Stored (&taps)[width]) const {
#pragma unroll
        for (int j = 0; j < width; ++j) taps[j] = ((global<const T>)weight)[uint64_t{channel_} * width + j];
    }
    KITTENS_DEVICE Value load_channel(const void* data) const {
        return static_cast<float>(((global<const T>)data)[channel_]);
    }
    KITTENS_DEVICE Stored load(const Sequenced& of, const Tile& at, int32_t time) const {
        if (time < 0 || time >= static_cast<int32_t>(at.length)) return static_cast<T>(0.0f);
        return ((global<const T>)of.data)[offset(of, at, time)];
    }
    // Loads the times of the tile, `before` times ahead of it, and as many after it as fit in `values`. 0 outside the sequence.
    template <int before, int count>
    KITTENS_DEVICE void load_tile(const Sequenced& of, const Tile& at, Stored (&values)[count]) const {
        const int32_t first = at.first - before;
        auto* from = (global<const T>)of.data + offset(of, at, at.first);
        if (at.first + tile <= at.length && wide((const void*)from)) {
            const vector middle = *(global<const vector>)from;
#pragma unroll
            for (int i = 0; i < tile; ++i) values[before + i] = middle[i];
        } else {
#pragma unroll
            for (int i = 0; i < tile; ++i) values[before + i] = load(of, at, first + before + i);
        }
#pragma unroll
        for (int i = 0; i < before; ++i) values[i] = load(of, at, first + i);
#pragma unroll
        for (int i = before + tile; i < count; ++i) values[i] = load(of, at, first + i);
    }
    // Stores value(i) at each of the tile's times.
    template <class Function>
    KITTENS_DEVICE void store_tile(const Sequenced& of, const Tile& at, const Function& value) const {
        auto* to = (global<T>)const_cast<void*>(of.data) + offset(of, at, at.first);
        if (at.first + tile <= at.length && wide((const void*)to)) {
            eight all;
#pragma unroll
            for (int i = 0; i < tile; ++i) all[i] = value(i);
            *(global<vector>)to = __builtin_convertvector(all, kittens::raw_eight<T>);
            return;
        }
#pragma unroll
        for (int i = 0; i < tile; ++i)
            if (at.first + i < at.length) to[i] = static_cast<T>(value(i));
    }
    KITTENS_DEVICE Stored load_state(const States& states, int64_t slot, uint32_t column) const {
        return ((global<const T>)states.data)[state(states, slot, column)];
    }
    KITTENS_DEVICE void store_state(const States& states, int64_t slot, uint32_t column, Stored value) const {
        ((global<T>)states.data)[state(states, slot, column)] = value;
    }
    // The sum over all lanes, which share the channel.
    KITTENS_DEVICE void store_sum(float* sums, Value value) const {
        value = kittens::sum_of_lanes(value);
        if (kittens::lane_id() == 0) ((global<float>)sums)[channel_] = value;
    }

  private:
    KITTENS_DEVICE int64_t state(const States& states, int64_t slot, uint32_t column) const {
        return slot * states.slot + channel_ * states.channel + column * states.column;
    }
};

// For rows of channels, whose number is a multiple of a thread's. Adjacent threads have adjacent channels.
template <ConvConfig config, int channels>
    requires(config.channels_last)
class Lane<config, channels> {
    using T = typename element_of<config.element>::value;
    static constexpr int vector_alignment = channels * sizeof(T) < 4 ? sizeof(T) : 4;
    typedef kittens::vec<T, channels> vector __attribute__((aligned(vector_alignment)));
    uint32_t first_;

    KITTENS_DEVICE global<T> address(const Sequenced& of, const Tile& at, uint32_t time) const {
        return (global<T>)const_cast<void*>(of.data) + of.sequence * at.sequence +
               of.row * (at.begin + time) + first_;
    }

  public:
    using Value = kittens::vec<float, channels>;
    using Stored = kittens::vec<T, channels>;
    KITTENS_DEVICE static Value widened(Stored value) { return __builtin_convertvector(value, Value); }
    uint32_t row;

    KITTENS_DEVICE Lane(uint32_t thread, uint32_t, uint32_t all) {
        const uint32_t groups = all / channels;
        row = thread / groups;
        first_ = (thread - row * groups) * channels;
    }
    KITTENS_DEVICE bool none() const { return false; }
    KITTENS_DEVICE uint32_t first_channel() const { return first_; }
    KITTENS_DEVICE static uint32_t worker(uint32_t row) { return row; }

    template <int width>
    KITTENS_DEVICE void load_weight(const void* weight, Stored (&taps)[width]) const {
        auto* from = (global<const T>)weight + uint64_t{first_} * width;
        Stored in_order[width];
#pragma unroll
        for (int v = 0; v < width; ++v) in_order[v] = load_at(from + v * channels);
        transpose<channels>(in_order, taps);
    }
    KITTENS_DEVICE Value load_channel(const void* data) const {
        return widened(load_at((global<const T>)data + first_));
    }
    KITTENS_DEVICE Stored load(const Sequenced& of, const Tile& at, int32_t time) const {
        if (time < 0 || time >= static_cast<int32_t>(at.length)) return zeros();
        return load_at(address(of, at, time));
    }
    template <int before, int count>
    KITTENS_DEVICE void load_tile(const Sequenced& of, const Tile& at, Stored (&values)[count]) const {
        const int32_t first = at.first - before, last = at.length - 1;
        if (last < 0) {
#pragma unroll
            for (int i = 0; i < count; ++i) values[i] = zeros();
            return;
        }
        const int32_t begin = first < 0 ? 0 : first;
        const auto* from = address(of, at, begin);
        // Reads the nearest valid time, so that no load waits for a branch.
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const int32_t time = first + i, there = time < begin ? begin : time > last ? last : time;
            values[i] = load_at(from + of.row * static_cast<uint32_t>(there - begin));
        }
#pragma unroll
        for (int i = 0; i < count; ++i)
            if (first + i < 0 || first + i > last) values[i] = zeros();
    }
    template <class Function>
    KITTENS_DEVICE void store_tile(const Sequenced& of, const Tile& at, const Function& value) const {
        auto* to = address(of, at, at.first);
#pragma unroll
        for (int i = 0; i < tile; ++i) {
            if (at.first + i >= at.length) return;
            store_at(to + of.row * i, __builtin_convertvector(value(i), Stored));
        }
    }
    KITTENS_DEVICE Stored load_state(const States& states, int64_t slot, uint32_t column) const {
        auto* from = (global<const T>)states.data + state(states, slot, column);
        if (states.channel == 1) return load_at(from);
        Stored values;
#pragma unroll
        for (int c = 0; c < channels; ++c) values[c] = from[c * states.channel];
        return values;
    }
    KITTENS_DEVICE void store_state(const States& states, int64_t slot, uint32_t column, Stored value) const {
        auto* to = (global<T>)states.data + state(states, slot, column);
        if (states.channel == 1) return store_at(to, value);
#pragma unroll
        for (int c = 0; c < channels; ++c) to[c * states.channel] = value[c];
    }
    KITTENS_DEVICE void store_sum(float* sums, Value value) const {
#pragma unroll
        for (int c = 0; c < channels; ++c) ((global<float>)sums)[first_ + c] = value[c];
    }

  private:
    KITTENS_DEVICE static Stored zeros() { return static_cast<T>(0.0f); }
    KITTENS_DEVICE static Stored load_at(global<const T> from) { return *(global<const vector>)from; }
    KITTENS_DEVICE static void store_at(global<T> to, Stored values) { *(global<vector>)to = values; }
    KITTENS_DEVICE int64_t state(const States& states, int64_t slot, uint32_t column) const {
        return slot * states.slot + first_ * states.channel + column * states.column;
    }
};

}  // namespace hipkittens::conv
