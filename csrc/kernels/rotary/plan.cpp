// kernels/rotary/plan.cpp: the launch of a rotation, and whether it may use 16-byte accesses.
// SPDX-License-Identifier: MIT
#include "plan.h"

#include <algorithm>
#include <stdexcept>

namespace hipkittens::rotary {
namespace {

bool on_dwords(const void* data, int64_t size, std::initializer_list<int64_t> strides) {
    if (reinterpret_cast<uintptr_t>(data) % 4) return false;
    for (const int64_t stride : strides)
        if (stride * size % 4) return false;
    return true;
}

bool on_dwords(ElementType element, const HeadTensor& tensor) {
    return on_dwords(tensor.data, size_of(element), {tensor.batch, tensor.token, tensor.head});
}

// Whether pairs and other features are whole chunks, and rows of tables are 4-byte aligned. An interleaved pair, and eight
// features after the pairs, take one more chunk.
bool is_wide(const Rotation& r, bool with_rest) {
    const uint32_t axis_pairs = r.grid_width ? r.pairs / 2 : r.pairs;
    if (axis_pairs % 8 || (with_rest && (r.features % 8 || r.first % 8))) return false;
    for (const AngleTable* table : {&r.table, r.grid_width ? &r.column_table : &r.table})
        if (!on_dwords(table->cos, size_of(r.table_type), {table->cos_stride}) ||
            !on_dwords(table->sin, size_of(r.table_type), {table->sin_stride}))
            return false;
    return true;
}

bool is_wide(ElementType element, const RotaryArguments& a) {
    // In place, the other features are left unchanged, but the pairs must still begin on a whole chunk.
    if (!is_wide(a.rotation, a.copies_rest) || a.rotation.first % 8) return false;
    for (const Rotated& part : a.parts)
        if (part.heads && !(on_dwords(element, part.in) && on_dwords(element, part.out))) return false;
    return true;
}

// Converts a tensor to the plain form with its extent, if everything except the batch stride fits in 32 bits.
bool as_plain(const HeadTensor& tensor, int64_t size, int heads, int features, PlainTensor& plain,
              uint32_t& extent) {
    const int64_t all = ((heads - 1) * tensor.head + features) * size;
    // A head past the last one must be out of range, even two passes of a wave further.
    if (tensor.head < features || tensor.token < 0 || tensor.token * size > UINT32_MAX ||
        (heads + 128) * tensor.head * size > INT32_MAX)
        return false;
    plain = {tensor.data, tensor.batch * size, static_cast<uint32_t>(tensor.token * size),
             static_cast<uint32_t>(tensor.head * size)};
    extent = static_cast<uint32_t>(all);
    return true;
}

// Returns false if a call needs more than the plain form supports.
bool as_plain(ElementType element, const RotaryArguments& a, PlainArguments& plain) {
    const Rotation& r = a.rotation;
    const AngleTable& table = r.table;
    const int64_t size = size_of(element), stride = table.cos_stride * size_of(r.table_type);
    const int features = static_cast<int>(r.features), units = static_cast<int>(r.pairs) / pairs_per_lane;
    if (!a.wide || r.interleaved || r.positions.data || r.offsets.data || r.full || r.grid_width ||
        2 * r.pairs != r.features || (units & (units - 1)) || units > 64 || a.parts[0].heads == 0 ||
        a.batch > 0xffff || r.offset < 0 || stride < 0 || stride > UINT32_MAX ||
        table.sin_stride != table.cos_stride)
        return false;
    while (1 << plain.unit_shift < units) ++plain.unit_shift;
    const int heads_at_a_time = 64 / units;
    const auto passes = [&](int heads) {
        return static_cast<uint32_t>((heads + heads_at_a_time - 1) / heads_at_a_time);
    };
    const Rotated &first = a.parts[0], &second = a.parts[1];
    if (!as_plain(first.in, size, first.heads, features, plain.in, plain.extent) ||
        !as_plain(first.out, size, first.heads, features, plain.out, plain.out_extent))
        return false;
    if (second.heads &&
        (!as_plain(second.in, size, second.heads, features, plain.second_in, plain.second_extent) ||
         !as_plain(second.out, size, second.heads, features, plain.second_out, plain.second_out_extent)))
        return false;
    const int64_t known = table.rows > r.offset ? table.rows - r.offset : 0;
    if (known < a.tokens) return false;  // some token's row would be past the end of the tables
    plain.passes = passes(first.heads);
    plain.second_passes = passes(second.heads);
    // One wave per pass, up to the size of a workgroup: with few tokens this occupies more waves, and with many tokens a
    // finished wave makes room sooner.
    while (2u << plain.share_shift <= std::min<uint32_t>(waves, plain.passes)) ++plain.share_shift;
    plain.cos = static_cast<const char*>(table.cos) + r.offset * stride;
    plain.sin = static_cast<const char*>(table.sin) + r.offset * stride;
    plain.tokens = a.tokens;
    plain.table_stride = static_cast<uint32_t>(stride);
    plain.inverse = r.inverse;
    return true;
}

// HIP counts the threads of a grid dimension in 32 bits.
int64_t checked_tokens(uint32_t batch, uint32_t tokens, const Rotation& r) {
    const int64_t all = static_cast<int64_t>(batch) * tokens;
    if (all < 1 || all > 0x3ffffffll)
        throw std::invalid_argument("rotary: " + std::to_string(all) + " tokens; 1 .. 67108863 are allowed");
    if (r.pairs < 1 || 2 * r.pairs > r.features || (r.first && r.first != r.features - 2 * r.pairs) ||
        (r.grid_width && r.pairs % 2))
        throw std::invalid_argument("rotary: " + std::to_string(r.pairs) + " pairs of " +
                                    std::to_string(r.features) + " features from " + std::to_string(r.first) +
                                    " on");
    return all;
}

// log2 of the lanes per head: for its pairs and other features, or for a head that is not rotated.
uint32_t lane_shift_of(const Rotation& r) {
    const uint32_t axes = r.grid_width ? 2 : 1, axis_units = (r.pairs / axes + 7) / 8;
    const uint32_t units =
        std::max(axes * axis_units + (r.features - 2 * r.pairs + 15) / 16, (r.features + 15) / 16);
    uint32_t shift = 2;  // sums are taken over 4 lanes or more
    while (1u << shift < units) ++shift;
    if (shift > 6)
        throw std::invalid_argument("qkv_rotary: a head has " + std::to_string(r.features) + " features in " +
                                    std::to_string(units) +
                                    " units of 8 pairs or 16 features; 64 units are allowed");
    return shift;
}
uint32_t passes_of(uint32_t heads, uint32_t lane_shift) {
    const uint32_t at_a_time = 64 >> lane_shift;
    return (heads + at_a_time - 1) / at_a_time;
}
bool weight_is_wide(const void* weight) { return reinterpret_cast<uintptr_t>(weight) % 4 == 0; }

}  // namespace

Launch plan(int target, ElementType element, const RotaryArguments& given) {
    const int64_t all = checked_tokens(given.batch, given.tokens, given.rotation);
    for (const Rotated& part : given.parts)
        if (static_cast<int64_t>(part.heads) * given.rotation.features > 0x7fffffff)
            throw std::invalid_argument("rotary: a token has more than 2147483647 features");
    RotaryArguments arguments = given;
    arguments.wide = is_wide(element, given);
    PlainArguments plain{};
    const bool is_plain = as_plain(element, arguments, plain);
    const uint32_t together = waves >> plain.share_shift;  // tokens per workgroup
    for (const Row<kinds::plain>& row : variants<kinds::plain>)
        if (is_plain && row.config.element == element && row.config.table == given.rotation.table_type)
            return launch_of("rotary", row.name, target,
                             {(given.tokens + together - 1) / together, given.batch, 1}, waves * 64, plain);
    for (const Row<kinds::rotary>& row : variants<kinds::rotary>)
        if (row.config.element == element)
            return launch_of("rotary", row.name, target,
                             {static_cast<uint32_t>((all + waves - 1) / waves), 1, 1}, waves * 64, arguments);
    throw std::invalid_argument("rotary: no kernel has this element type");
}

Launch plan_qkv(int target, ElementType element, QkvArguments a) {
    const int64_t all = checked_tokens(a.batch, a.tokens, a.rotation);
    a.lane_shift = lane_shift_of(a.rotation);
    a.wide = is_wide(a.rotation, true);
    uint32_t passes = 0;
    for (HeadPart& part : a.parts) {
        part.passes = passes_of(part.heads, a.lane_shift);
        passes += part.passes;
        a.wide = a.wide && on_dwords(element, part.in) && on_dwords(element, part.out) &&
                 weight_is_wide(part.weight);
    }
    // As in the plain form.
    a.share_shift = 0;
    while (2u << a.share_shift <= std::min<uint32_t>(waves, passes)) ++a.share_shift;
    const uint32_t together = waves >> a.share_shift;
    for (const Row<kinds::qkv>& row : variants<kinds::qkv>)
        if (row.config.element == element)
            return launch_of("rotary", row.name, target,
                             {static_cast<uint32_t>((all + together - 1) / together), 1, 1}, waves * 64, a);
    throw std::invalid_argument("qkv_rotary: no kernel has this element type");
}

Launch plan_joined(int target, ElementType element, int64_t tokens, JoinedArguments a) {
    const Rotation& r = a.rotation;
    const int64_t all = checked_tokens(a.batch, static_cast<uint32_t>(tokens), r);
    const int64_t axes = r.grid_width ? 2 : 1,
                  per_axis = (r.pairs / axes + pairs_per_lane - 1) / pairs_per_lane;
    a.tokens = divisor_of(static_cast<uint32_t>(tokens));
    a.wide = is_wide(r, true);
    int64_t workgroups = 0;
    for (uint32_t i = 0; i < joined_parts; ++i) {
        JoinedPart& part = a.parts[i];
        const int64_t copied =
            (int64_t{part.end} - part.begin + 2 * pairs_per_lane - 1) / (2 * pairs_per_lane);
        const int64_t of_head = part.turns ? axes * per_axis : copied, units = of_head * part.heads;
        // HIP counts the threads of a grid dimension in 32 bits.
        if (units > UINT32_MAX / all ||
            (workgroups += (all * units + joined_threads - 1) / joined_threads) > UINT32_MAX / joined_threads)
            throw std::invalid_argument("rotary: " + std::to_string(all) + " tokens of " +
                                        std::to_string(part.heads) + " heads of " +
                                        std::to_string(r.features) + " features; that is too many");
        part.units = divisor_of(static_cast<uint32_t>(std::max<int64_t>(units, 1)));
        part.head_units = divisor_of(static_cast<uint32_t>(std::max<int64_t>(of_head, 1)));
        if (units) a.wide = a.wide && on_dwords(element, part.in) && on_dwords(element, part.out);
        if (i + 1 < joined_parts) a.ends[i] = static_cast<uint32_t>(workgroups);
    }
    for (const Row<kinds::joined>& row : variants<kinds::joined>)
        if (row.config.element == element)
            return launch_of("rotary", row.name, target, {static_cast<uint32_t>(workgroups), 1, 1},
                             joined_threads, a);
    throw std::invalid_argument("rotary: no kernel has this element type");
}

uint32_t qkv_backward_workgroups(int64_t tokens, int64_t heads) {
    return static_cast<uint32_t>(
        std::clamp<int64_t>((tokens * heads + waves - 1) / waves, 1, largest_backward_workgroups));
}

Launch plan_qkv_backward(int target, ElementType element, QkvBackwardArguments a) {
    const int64_t all = checked_tokens(a.batch, a.tokens, a.rotation);
    a.lane_shift = lane_shift_of(a.rotation);
    a.wide = is_wide(a.rotation, true);
    for (HeadGradient& part : a.parts) {
        part.passes = passes_of(part.heads, a.lane_shift);
        if (all * part.passes > UINT32_MAX - largest_backward_workgroups * waves)
            throw std::invalid_argument("qkv_rotary_backward: " + std::to_string(all) + " tokens of " +
                                        std::to_string(part.heads) + " heads; that is too many");
        a.wide = a.wide && on_dwords(element, part.grad) && on_dwords(element, part.out) &&
                 (!part.weight || on_dwords(element, part.x)) && weight_is_wide(part.weight);
    }
    for (const Row<kinds::qkv_backward>& row : variants<kinds::qkv_backward>)
        if (row.config.element == element)
            return launch_of("rotary", row.name, target, {a.workgroups, 3, 1}, waves * 64, a);
    throw std::invalid_argument("qkv_rotary_backward: no kernel has this element type");
}

}  // namespace hipkittens::rotary
