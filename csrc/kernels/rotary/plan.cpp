// kernels/rotary/plan.cpp: the launch of a rotation, and whether it may use 16-byte accesses.
// SPDX-License-Identifier: MIT
#include "plan.h"

#include <cstring>
#include <stdexcept>

namespace hipkittens::rotary {
namespace {

int64_t size_of(ElementType type) { return type == ElementType::f32 ? 4 : 2; }

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
    const char* name = nullptr;
    for (const RotaryVariant& variant : rotary_variants)
        if (variant.element == element) name = variant.name;
    RotaryArguments arguments = given;
    arguments.wide = is_wide(element, given);
    Launch launch{std::string("hipkittens_rotary_") + name + "_gfx" + std::to_string(target),
                  name,
                  {static_cast<uint32_t>((all + waves - 1) / waves), 1, 1},
                  {waves * 64, 1, 1},
                  std::vector<unsigned char>(sizeof(arguments))};
    std::memcpy(launch.arguments.data(), &arguments, sizeof(arguments));
    return launch;
}

}  // namespace hipkittens::rotary
