// tiles/element.h: element types, vectors of them, and their address spaces.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

#define KITTENS_DEVICE __attribute__((device, always_inline)) inline
// For lambdas in large kernels: a lambda that is not inlined forces everything it captures into memory.
#define KITTENS_INLINE __attribute__((always_inline))

namespace kittens {

using bf16 = __bf16;
using half = _Float16;
// 8-bit floats, e4m3 or e5m2 (gfx942: its own encodings without infinities and negative zero; gfx950: OCP's), and two e2m1 in one
// byte, the first in the low half. They are distinct types so that the matrix instruction follows from them; arithmetic on them
// is integer arithmetic on their bits.
using fp8_e4m3 = unsigned _BitInt(8);
using bf8_e5m2 = signed _BitInt(8);
using fp4_pair = unsigned char;
// Dwords of 6-bit values, e2m3 and e3m2: 24 dwords hold 128 values (shared_tile_of_6_bits.h).
using fp6_e2m3 = unsigned _BitInt(32);
using bf6_e3m2 = signed _BitInt(32);
using int8 = signed char;

template <class T, int Count>
using vec = T __attribute__((ext_vector_type(Count)));

template <class T>
inline constexpr bool is_16bit = sizeof(T) == 2;

using shared_byte = __attribute__((address_space(3))) char;
template <class T>
using shared_pointer = __attribute__((address_space(3))) T*;

inline constexpr int wave_lanes = 64;
// The widest LDS or buffer access of one lane.
inline constexpr int b128_bytes = 16;
using b128 = vec<uint32_t, 4>;

template <class A, class B>
inline constexpr bool same_type = false;
template <class A>
inline constexpr bool same_type<A, A> = true;

template <bool first, class A, class B>
struct choice {
    using type = A;
};
template <class A, class B>
struct choice<false, A, B> {
    using type = B;
};
template <class T>
inline constexpr bool is_float8 = same_type<T, fp8_e4m3> || same_type<T, bf8_e5m2>;

template <class T>
inline constexpr bool is_float6 = same_type<T, fp6_e2m3> || same_type<T, bf6_e3m2>;
template <class T>
inline constexpr bool is_float4 = same_type<T, fp4_pair>;

// A lane's 32 values, as the first 16 bytes and the last 8, the way they are read. The compiler would take a single vector apart.
template <class T>
struct codes_of_6_bits {
    vec<uint32_t, 4> first;
    vec<uint32_t, 2> last;
};

// Number of elements T that store the first `codes` quantized values of a row.
template <class T>
KITTENS_DEVICE constexpr int stored(int codes) {
    const unsigned count = static_cast<unsigned>(codes);
    if constexpr (is_float4<T>)
        return static_cast<int>(count / 2);
    else if constexpr (is_float6<T>)
        return static_cast<int>((count + 127) / 128 * 24);
    else
        return codes;
}

template <bool first, class A, class B>
using choose = typename choice<first, A, B>::type;

}  // namespace kittens
