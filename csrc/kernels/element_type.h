// kernels/element_type.h: the possible element types of a tensor, for the host and for rows of variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

namespace hipkittens {

// fp8, bf8: e4m3 and e5m2 as encoded by the target. fp4: two e2m1 per byte; sizes and strides count bytes. fp6, bf6: e2m3 and e3m2,
// 128 of them in 24 dwords (tiles/shared_tile_of_6_bits.h); sizes and strides count dwords.
enum class ElementType : int32_t { bf16, f16, f32, fp8, bf8, i8, fp4, i32, fp6, bf6 };

constexpr bool is_6_bits(ElementType type) { return type == ElementType::fp6 || type == ElementType::bf6; }

constexpr int size_of(ElementType type) {
    if (type == ElementType::f32 || type == ElementType::i32 || is_6_bits(type)) return 4;
    return type == ElementType::bf16 || type == ElementType::f16 ? 2 : 1;
}

// Number of units of size_of that store this many values of a row.
constexpr int64_t stored_elements(ElementType type, int64_t codes) {
    if (is_6_bits(type)) return (codes + 127) / 128 * 24;
    return type == ElementType::fp4 ? codes / 2 : codes;
}

// For kinds whose rows differ only in the element type.
struct ElementConfig {
    ElementType element;
};

}  // namespace hipkittens
