// kernels/rotary/qkv.h: splits the heads of a packed qkv, normalizes and rotates them, and writes them to a cache.
// SPDX-License-Identifier: MIT
#pragma once
#include "angles.h"
#include "cached_unit.h"
#include "rows.h"

namespace hipkittens::rotary {

// Over the 1 << shift lanes of a head: 4 to 64.
KITTENS_DEVICE float sum_of_head(float value, uint32_t shift) {
    const auto add = [](float a, float b) { return a + b; };
    value = kittens::combine_group(value, 1u << shift, add);
    if (shift >= 5) value += kittens::exchange_16(value);
    if (shift >= 6) value += kittens::exchange_32(value);
    return value;
}
// Over the lanes that have the same features of different heads.
KITTENS_DEVICE float sum_over_heads(float value, uint32_t shift) {
    if (shift <= 2) value += kittens::rotate_in_16<4>(value);
    if (shift <= 3) value += kittens::rotate_in_16<8>(value);
    if (shift <= 4) value += kittens::exchange_16(value);
    if (shift <= 5) value += kittens::exchange_32(value);
    return value;
}
KITTENS_DEVICE float sum_of(const Pairs& x) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < pairs_per_lane; ++i) sum += x.a[i] + x.b[i];
    return sum;
}
KITTENS_DEVICE Pairs operator*(const Pairs& x, const Pairs& y) { return {x.a * y.a, x.b * y.b}; }
KITTENS_DEVICE Pairs operator*(const Pairs& x, float y) { return {x.a * y, x.b * y}; }

// One or several waves of a workgroup process a token, as many of its heads at a time as fit in a wave; a lane has the same unit of each.
template <class T>
KITTENS_DEVICE void split_and_rotate(const QkvArguments& arguments) {
    const uint32_t wave = kittens::wave_id(), share_count = 1u << arguments.share_shift;
    const uint32_t index =
        kittens::workgroup_id_x() * (waves >> arguments.share_shift) + (wave >> arguments.share_shift);
    const uint32_t batch = index / arguments.tokens, token = index - batch * arguments.tokens;
    if (batch >= arguments.batch) return;
    const uint32_t lane = kittens::lane_id(), shift = arguments.lane_shift;
    const uint32_t group = lane >> shift, groups = kittens::wave_lanes >> shift,
                   number = lane & ((1u << shift) - 1);
    const auto unit_or_none = [&](const Units& units) {
        return number < units.all() ? units[number] : Unit();
    };
    const Unit turned = unit_or_none(Units(arguments.rotation));
    const Unit whole = unit_or_none(Units(arguments.rotation.features));
    // The waves of a token continue in the next part where they end in one.
    constexpr uint32_t part_count = sizeof arguments.parts / sizeof arguments.parts[0];
    const auto skip_parts = [&](uint32_t& part, uint32_t& pass) {
        for (; part < part_count && pass >= arguments.parts[part].passes; ++part)
            pass -= arguments.parts[part].passes;
    };
    const auto unit_of = [&](const HeadPart& part, uint32_t head) {
        return head < part.heads ? part.turned ? turned : whole : Unit();
    };
    const auto load = [&](const HeadPart& part, uint32_t head) {
        const T* row = row_of<T>(part.in, batch, token, head < part.heads ? head : 0);
        return load_unit(row, unit_of(part, head), arguments.wide);
    };
    uint32_t next_part = 0, next_pass = wave & (share_count - 1);
    skip_parts(next_part, next_pass);
    // The next data is requested before the current one is rotated, and the first of it before the angles.
    Loaded<T> ahead{};
    if (next_part < part_count) ahead = load(arguments.parts[next_part], next_pass * groups + group);
    Turn turn{};
    if (turned.turned) turn = Angles(arguments.rotation, batch, token).load(turned, arguments.wide);
    const int32_t slot = arguments.slots.data ? slot_of(arguments.slots, index) : -1;

    while (next_part < part_count) {
        const HeadPart& part = arguments.parts[next_part];
        const uint32_t head = next_pass * groups + group;
        Loaded<T> x = ahead;
        next_pass += share_count;
        skip_parts(next_part, next_pass);
        if (next_part < part_count) ahead = load(arguments.parts[next_part], next_pass * groups + group);
        const Unit mine = unit_of(part, head);
        if (part.turned) {
            Pairs values = widened(x);
            if (part.weight) {
                const float squares = sum_of_head(sum_of(values * values), shift);
                const float scale = kittens::hardware_reciprocal_square_root(
                    squares / arguments.rotation.features + arguments.epsilon);
                values = values * scale *
                         load_unit_as(arguments.weight_type, part.weight, 0, mine, arguments.wide);
            }
            if (mine.turned) turn(values);
            if (mine.turned || part.weight) x = rounded<T>(values);
        }
        if (head >= part.heads) continue;
        store_unit(x, result_of<T>(part.out, batch, token, head), mine, arguments.wide);
        if (!kittens::is_16bit<T> || !part.cached || slot < 0) continue;
        store_unit_in_cache<T>(x, arguments.slots, part.cache, slot, head, mine, arguments.wide);
    }
}

// The transpose, back through the norm. The waves of a part take tokens, and passes over their heads, in turns, so that a lane has
// the same features of all of them.
template <class T>
KITTENS_DEVICE void split_backward(const QkvBackwardArguments& arguments) {
    const HeadGradient& part = arguments.parts[kittens::workgroup_id_y()];
    const uint32_t lane = kittens::lane_id(), shift = arguments.lane_shift;
    const uint32_t group = lane >> shift, groups = kittens::wave_lanes >> shift,
                   number = lane & ((1u << shift) - 1);
    const Units units = part.turned ? Units(arguments.rotation) : Units(arguments.rotation.features);
    const Unit own = number < units.all() ? units[number] : Unit();
    const uint32_t wave = kittens::workgroup_id_x() * waves + kittens::wave_id();
    const uint32_t items = arguments.batch * arguments.tokens * part.passes;
    const float per_feature = 1.0f / arguments.rotation.features;
    Pairs weight{}, weight_sums{};
    if (part.weight) weight = load_unit_as(arguments.weight_type, part.weight, 0, own, arguments.wide);
    for (uint32_t item = wave; item < items; item += arguments.workgroups * waves) {
        const uint32_t index = item / part.passes, pass = item - index * part.passes;
        const uint32_t batch = index / arguments.tokens, token = index - batch * arguments.tokens;
        const uint32_t head = pass * groups + group;
        const bool there = head < part.heads;
        const Unit mine = there ? own : Unit();
        Loaded<T> result =
            load_unit(row_of<T>(part.grad, batch, token, there ? head : 0), mine, arguments.wide);
        if (part.turned) {
            Pairs grad = widened(result);
            if (mine.turned) {
                // Read again for each token; otherwise it would occupy scalar registers in between.
                const Rotation rotation = kittens::reload_arguments<QkvBackwardArguments>().rotation;
                Angles(rotation, batch, token).load(mine, arguments.wide)(grad);
            }
            if (part.weight) {
                const Pairs x = widened(
                    load_unit(row_of<T>(part.x, batch, token, there ? head : 0), mine, arguments.wide));
                const float squares = sum_of_head(sum_of(x * x), shift);
                const float scale =
                    kittens::hardware_reciprocal_square_root(squares * per_feature + arguments.epsilon);
                const Pairs normal = x * scale;
                weight_sums.a += grad.a * normal.a;
                weight_sums.b += grad.b * normal.b;
                grad = grad * weight;
                const float mean = sum_of_head(sum_of(grad * normal), shift) * per_feature;
                grad = Pairs{grad.a - normal.a * mean, grad.b - normal.b * mean} * scale;
            }
            if (mine.turned || part.weight) result = rounded<T>(grad);
        }
        if (there) store_unit(result, result_of<T>(part.out, batch, token, head), mine, arguments.wide);
    }
    if (!part.weight) return;
#pragma unroll
    for (int i = 0; i < pairs_per_lane; ++i) {
        weight_sums.a[i] = sum_over_heads(weight_sums.a[i], shift);
        weight_sums.b[i] = sum_over_heads(weight_sums.b[i], shift);
    }
    if (group != 0) return;
    store_unit<float>({weight_sums.a, weight_sums.b},
                      part.weight_sums + static_cast<int64_t>(wave) * arguments.rotation.features, own,
                      arguments.wide);
}

}  // namespace hipkittens::rotary
