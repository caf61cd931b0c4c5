// kernels/element_type.h: what the elements of a tensor may be, as the host says it and a row of variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

namespace hipkittens {

// fp8, bf8: e4m3 and e5m2 as the target encodes them. fp4: two e2m1 in a byte; sizes and strides count bytes. fp6, bf6: e2m3 and e3m2,
// 128 of them in 24 dwords (tiles/shared_tile_of_6_bits.h); sizes and strides count dwords.
enum class ElementType : int32_t { bf16, f16, f32, fp8, bf8, i8, fp4, i32, fp6, bf6 };

constexpr bool is_6_bits(ElementType type) { return type == ElementType::fp6 || type == ElementType::bf6; }

constexpr int size_of(ElementType type) {
    if (type == ElementType::f32 || type == ElementType::i32 || is_6_bits(type)) return 4;
    return type == ElementType::bf16 || type == ElementType::f16 ? 2 : 1;
}

// How many of size_of so many codes of a row take.
constexpr int64_t stored_elements(ElementType type, int64_t codes) {
    if (is_6_bits(type)) return (codes + 127) / 128 * 24;
    return type == ElementType::fp4 ? codes / 2 : codes;
}

// Of kinds whose rows differ in the element's type alone.
struct ElementConfig {
    ElementType element;
};

}  // namespace hipkittens
