// kernels/rotary/unit.h: the features of a head that a lane has, as eight pairs or as sixteen features that are not rotated.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/row_chunk.h"
#include "../element_of.h"
#include "config.h"

namespace hipkittens::rotary {

using kittens::eight;

// Device memory, with the alignment that 16-byte accesses need: a dword.
template <class T>
using global = __attribute__((address_space(1))) T*;
template <class T>
struct Eight {
    typedef kittens::raw_eight<T> aligned __attribute__((aligned(4)));
};

// Features a + i step and b + i step, count_a and count_b of them. `wide` tensors have all eight of both, or no b.
struct Unit {
    uint32_t a = 0, b = 0, step = 1, count_a = 0, count_b = 0;
    bool turned = false;
    uint32_t axis = 0, pair = 0;  // of the first of the pairs, in its half of a grid
};

// The units of a head: those of the pairs, followed by those of the other features.
class Units {
    uint32_t axis_pairs_, axis_units_, turned_, first_, rest_, rest_end_;
    bool interleaved_;

  public:
    KITTENS_DEVICE explicit Units(const Rotation& rotation) {
        const uint32_t axes = rotation.grid_width ? 2 : 1;
        axis_pairs_ = rotation.pairs / axes;
        axis_units_ = (axis_pairs_ + pairs_per_lane - 1) / pairs_per_lane;
        turned_ = axes * axis_units_;
        first_ = rotation.first;
        rest_ = first_ ? 0 : 2 * rotation.pairs;
        rest_end_ = first_ ? first_ : rotation.features;
        interleaved_ = rotation.interleaved;
    }
    // For a head that is not rotated, or for some of its features.
    KITTENS_DEVICE explicit Units(uint32_t features) : Units(0, features) {}
    KITTENS_DEVICE Units(uint32_t begin, uint32_t end)
        : axis_pairs_(0), axis_units_(1), turned_(0), first_(0), rest_(begin), rest_end_(end) {}

    KITTENS_DEVICE uint32_t turned() const { return turned_; }
    KITTENS_DEVICE uint32_t all() const {
        return turned_ + (rest_end_ - rest_ + 2 * pairs_per_lane - 1) / (2 * pairs_per_lane);
    }
    KITTENS_DEVICE Unit operator[](uint32_t index) const {
        Unit unit;
        const auto counted = [](uint32_t from, uint32_t end) {
            return from >= end ? 0 : end - from < pairs_per_lane ? end - from : pairs_per_lane;
        };
        if (index < turned_) {
            unit.turned = true;
            unit.axis = index >= axis_units_;
            unit.pair = (unit.axis ? index - axis_units_ : index) * pairs_per_lane;
            const uint32_t begin = first_ + unit.axis * 2 * axis_pairs_;
            unit.a = begin + (interleaved_ ? 2 * unit.pair : unit.pair);
            unit.b = interleaved_ ? unit.a + 1 : unit.a + axis_pairs_;
            unit.step = interleaved_ ? 2 : 1;
            unit.count_a = unit.count_b = counted(unit.pair, axis_pairs_);
        } else {
            unit.a = rest_ + (index - turned_) * 2 * pairs_per_lane;
            unit.b = unit.a + pairs_per_lane;
            unit.count_a = counted(unit.a, rest_end_);
            unit.count_b = counted(unit.b, rest_end_);
        }
        return unit;
    }
};

template <class T>
struct Loaded {
    kittens::raw_eight<T> a = T(), b = T();
};

// Features that are not counted are 0.
template <class T>
KITTENS_DEVICE Loaded<T> load_unit(const T* row, const Unit& unit, bool wide) {
    const auto eight_at = [&](uint32_t at) {
        return kittens::raw_eight<T>(*(global<const typename Eight<T>::aligned>)(row + at));
    };
    Loaded<T> x;
    if (!wide) {
        auto* from = (global<const T>)row;
#pragma unroll
        for (uint32_t i = 0; i < pairs_per_lane; ++i) {
            if (i < unit.count_a) x.a[i] = from[unit.a + i * unit.step];
            if (i < unit.count_b) x.b[i] = from[unit.b + i * unit.step];
        }
        return x;
    }
    if (unit.count_a == 0) return x;
    const auto low = eight_at(unit.a);
    if (unit.count_b == 0) {
        x.a = low;
        return x;
    }
    const auto high = eight_at(unit.step == 1 ? unit.b : unit.a + pairs_per_lane);
    if (unit.step == 1) return {low, high};
    return {__builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14),
            __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15)};
}

// In memory order, as with `step` 1: eight from feature a on, eight from feature b or a + 8 on.
template <class T>
KITTENS_DEVICE Loaded<T> in_memory_order(const Loaded<T>& x, const Unit& unit) {
    if (unit.step == 1) return x;
    return {__builtin_shufflevector(x.a, x.b, 0, 8, 1, 9, 2, 10, 3, 11),
            __builtin_shufflevector(x.a, x.b, 4, 12, 5, 13, 6, 14, 7, 15)};
}

template <class T>
KITTENS_DEVICE void store_unit(const Loaded<T>& x, T* row, const Unit& unit, bool wide) {
    if (!wide) {
        auto* to = (global<T>)row;
#pragma unroll
        for (uint32_t i = 0; i < pairs_per_lane; ++i) {
            if (i < unit.count_a) to[unit.a + i * unit.step] = x.a[i];
            if (i < unit.count_b) to[unit.b + i * unit.step] = x.b[i];
        }
        return;
    }
    if (unit.count_a == 0) return;
    const Loaded<T> ordered = in_memory_order(x, unit);
    *(global<typename Eight<T>::aligned>)(row + unit.a) = ordered.a;
    if (unit.count_b)
        *(global<typename Eight<T>::aligned>)(row + (unit.step == 1 ? unit.b : unit.a + pairs_per_lane)) =
            ordered.b;
}

struct Pairs {
    eight a, b;
};
template <class T>
KITTENS_DEVICE Pairs widened(const Loaded<T>& x) {
    return {kittens::widened(x.a), kittens::widened(x.b)};
}
template <class T>
KITTENS_DEVICE Loaded<T> rounded(const Pairs& x) {
    return {__builtin_convertvector(x.a, kittens::raw_eight<T>),
            __builtin_convertvector(x.b, kittens::raw_eight<T>)};
}

// The same for rows whose type is known only at run time.
KITTENS_DEVICE Pairs load_unit_as(ElementType type, const void* data, int64_t offset, const Unit& unit,
                                  bool wide) {
    const auto load = [&](auto element) {
        return widened(load_unit(static_cast<const decltype(element)*>(data) + offset, unit, wide));
    };
    if (type == ElementType::f32) return load(0.0f);
    return type == ElementType::bf16 ? load(kittens::bf16()) : load(kittens::half());
}

}  // namespace hipkittens::rotary
