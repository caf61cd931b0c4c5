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

bool is_wide(ElementType element, const RotaryArguments& a) {
    if (a.pairs % 8 || (a.copies_rest && (a.features - 2 * a.pairs) % 16)) return false;
    for (const Rotated& part : a.parts) {
        if (part.heads == 0) continue;
        for (const HeadTensor& tensor : {part.in, part.out})
            if (!on_dwords(tensor.data, size_of(element), {tensor.batch, tensor.token, tensor.head}))
                return false;
    }
    return on_dwords(a.cos, size_of(a.table_type), {a.cos_stride}) &&
           on_dwords(a.sin, size_of(a.table_type), {a.sin_stride});
}

// A tensor of the plain form and its extent, if 32 bits take all of it but the batch's step.
bool as_plain(const HeadTensor& tensor, int64_t size, int heads, int features, PlainTensor& plain,
              uint32_t& extent) {
    const int64_t all = ((heads - 1) * tensor.head + features) * size;
    // A head behind the last has to be out of range, also two passes of a wave further on.
    if (tensor.head < features || tensor.token < 0 || tensor.token * size > UINT32_MAX ||
        (heads + 128) * tensor.head * size > INT32_MAX)
        return false;
    plain = {tensor.data, tensor.batch * size, static_cast<uint32_t>(tensor.token * size),
             static_cast<uint32_t>(tensor.head * size)};
    extent = static_cast<uint32_t>(all);
    return true;
}

// False where a call needs more than the plain form has.
bool as_plain(ElementType element, const RotaryArguments& a, PlainArguments& plain) {
    const int64_t size = size_of(element), stride = a.cos_stride * size_of(a.table_type);
    const int units = a.pairs / pairs_per_lane;
    if (!a.wide || a.interleaved || a.positions || 2 * a.pairs != a.features || (units & (units - 1)) ||
        units > 64 || a.parts[0].heads == 0 || a.batch > 0xffff || a.offset < 0 || stride < 0 ||
        stride > UINT32_MAX || a.sin_stride != a.cos_stride)
        return false;
    while (1 << plain.unit_shift < units) ++plain.unit_shift;
    const int heads_at_a_time = 64 / units;
    const auto passes = [&](int heads) {
        return static_cast<uint32_t>((heads + heads_at_a_time - 1) / heads_at_a_time);
    };
    const Rotated &first = a.parts[0], &second = a.parts[1];
    if (!as_plain(first.in, size, first.heads, a.features, plain.in, plain.extent) ||
        !as_plain(first.out, size, first.heads, a.features, plain.out, plain.out_extent))
        return false;
    if (second.heads &&
        (!as_plain(second.in, size, second.heads, a.features, plain.second_in, plain.second_extent) ||
         !as_plain(second.out, size, second.heads, a.features, plain.second_out, plain.second_out_extent)))
        return false;
    const int64_t known = a.table_rows > a.offset ? a.table_rows - a.offset : 0;
    if (known < a.tokens) return false;  // some token would be looked up behind the tables
    plain.passes = passes(first.heads);
    plain.second_passes = passes(second.heads);
    // A pass for each wave, as far as a workgroup goes: the more waves, the more of them are there when tokens are few, and
    // the sooner one that is done makes room where they are many.
    while (2u << plain.share_shift <= std::min<uint32_t>(waves, plain.passes)) ++plain.share_shift;
    plain.cos = static_cast<const char*>(a.cos) + a.offset * stride;
    plain.sin = static_cast<const char*>(a.sin) + a.offset * stride;
    plain.tokens = a.tokens;
    plain.table_stride = static_cast<uint32_t>(stride);
    plain.inverse = a.inverse;
    return true;
}

}  // namespace

Launch plan(int target, ElementType element, const RotaryArguments& given) {
    const int64_t all = static_cast<int64_t>(given.batch) * given.tokens;
    if (all < 1 || all > 0x3ffffffll)  // HIP counts the threads of a grid dimension in 32 bits
        throw std::invalid_argument("rotary: " + std::to_string(all) + " tokens; 1 .. 67108863 are allowed");
    if (given.pairs < 1 || 2 * given.pairs > given.features)
        throw std::invalid_argument("rotary: " + std::to_string(given.pairs) + " pairs of " +
                                    std::to_string(given.features) + " features");
    for (const Rotated& part : given.parts)
        if (static_cast<int64_t>(part.heads) * given.features > 0x7fffffff)
            throw std::invalid_argument("rotary: a token has more than 2147483647 features");
    RotaryArguments arguments = given;
    arguments.wide = is_wide(element, given);
    PlainArguments plain{};
    const bool is_plain = as_plain(element, arguments, plain);
    const uint32_t together = waves >> plain.share_shift;  // tokens of a workgroup
    for (const Row<kinds::plain>& row : variants<kinds::plain>)
        if (is_plain && row.config.element == element && row.config.table == given.table_type)
            return launch_of("rotary", row.name, target,
                             {(given.tokens + together - 1) / together, given.batch, 1}, waves * 64, plain);
    for (const Row<kinds::rotary>& row : variants<kinds::rotary>)
        if (row.config.element == element)
            return launch_of("rotary", row.name, target,
                             {static_cast<uint32_t>((all + waves - 1) / waves), 1, 1}, waves * 64, arguments);
    throw std::invalid_argument("rotary: no kernel has this element type");
}

}  // namespace hipkittens::rotary
