// kernels/delta_rule/sum.h: floats as sums of two narrower elements, and products of them.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/convert.h"
#include "../../tiles/lane_intrinsics.h"
#include "../../tiles/matrix_intrinsics.h"

namespace hipkittens::delta_rule {

using four = kittens::vec<float, 4>;
template <class T>
using fragment = kittens::vec<T, 8>;

// A float as a sum of elements: for 16-bit types, the rounded value and the rounded rest, so that products with both eliminate the
// error of a 16-bit operand.
template <class T>
inline constexpr int parts = kittens::is_16bit<T> ? 2 : 1;
template <class T, int count>
struct Sum {
    kittens::vec<T, count> part[parts<T>];

    Sum() = default;
    KITTENS_DEVICE explicit Sum(kittens::vec<float, count> x) {
        if constexpr (kittens::same_type<T, kittens::bf16> && !kittens::target.converts_to_bf16) {
            // Like narrowed, except that ties go away from zero: they are no worse here, and this saves an instruction per element.
            part[0] = upper_halves(x);
            part[1] = upper_halves(x - __builtin_convertvector(part[0], kittens::vec<float, count>));
        } else if constexpr (kittens::is_16bit<T>) {
            part[0] = kittens::narrowed<T, count>(x);
            part[1] =
                kittens::narrowed<T, count>(x - __builtin_convertvector(part[0], kittens::vec<float, count>));
        } else {
            part[0] = x;
        }
    }

  private:
    KITTENS_DEVICE static kittens::vec<T, count> upper_halves(kittens::vec<float, count> x) {
        kittens::vec<uint32_t, count / 2> pairs;
#pragma unroll
        for (int i = 0; i < count / 2; ++i) {
            const float lo = x[2 * i], hi = x[2 * i + 1];
            pairs[i] = kittens::permute_bytes(__builtin_bit_cast(uint32_t, hi) + 0x8000,
                                              __builtin_bit_cast(uint32_t, lo) + 0x8000, 0x07060302);
        }
        return __builtin_bit_cast(kittens::vec<T, count>, pairs);
    }
};

// c + a b^T for a base tile, in f32.
template <class T>
KITTENS_DEVICE four add_product(fragment<T> a, fragment<T> b, four c) {
    if constexpr (kittens::is_16bit<T>) {
        return kittens::matrix_16x16(a, b, c);
    } else {
        // In a single chain, every term after the largest would round the sum: with strong decays, for a chunk that ends at its
        // first elements, seven times.
        four sums[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
            sums[e] =
                kittens::matrix_16x16(a[e + 4], b[e + 4], kittens::matrix_16x16(a[e], b[e], four(0.0f)));
        return c + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
}
template <class T>
KITTENS_DEVICE four add_product(const Sum<T, 8>& a, fragment<T> b, four c) {
#pragma unroll
    for (int n = parts<T> - 1; n >= 0; --n) c = add_product<T>(a.part[n], b, c);
    return c;
}
template <class T>
KITTENS_DEVICE four add_product(fragment<T> a, const Sum<T, 8>& b, four c) {
#pragma unroll
    for (int n = parts<T> - 1; n >= 0; --n) c = add_product<T>(a, b.part[n], c);
    return c;
}
// Without the product of the two rests.
template <class T>
KITTENS_DEVICE four add_product(const Sum<T, 8>& a, const Sum<T, 8>& b, four c) {
    if constexpr (parts<T> == 2) {
        c = add_product<T>(a.part[1], b.part[0], c);
        c = add_product<T>(a.part[0], b.part[1], c);
    }
    return add_product<T>(a.part[0], b.part[0], c);
}

// The part of the same products for four elements of a lane, where the matrix instruction takes no more. Half 0 or 1 of `a`.
template <class T>
inline constexpr bool has_short_products = kittens::is_16bit<T> && kittens::target.matrix_k_16bit == 16;
template <int half, class T>
KITTENS_DEVICE kittens::vec<T, 4> half_of(fragment<T> x) {
    return half ? kittens::vec<T, 4>(x.hi) : kittens::vec<T, 4>(x.lo);
}
template <class T, int half>
KITTENS_DEVICE four add_short_product(fragment<T> a, const Sum<T, 4>& b, four c) {
#pragma unroll
    for (int n = parts<T> - 1; n >= 0; --n) c = kittens::matrix_16x16<T>(half_of<half, T>(a), b.part[n], c);
    return c;
}
template <class T, int half>
KITTENS_DEVICE four add_short_product(const Sum<T, 8>& a, const Sum<T, 4>& b, four c) {
    c = kittens::matrix_16x16<T>(half_of<half, T>(a.part[1]), b.part[0], c);
    return add_short_product<T, half>(a.part[0], b, c);
}

}  // namespace hipkittens::delta_rule
