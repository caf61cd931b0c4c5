// tests/tiles/product_kernels.cpp: matrix products, conversions, order of schedules.
// SPDX-License-Identifier: MIT
#include "registers.h"

using namespace kittens;

// C + A B in all four orientations of the operands, 64 x 32 x 64 (K 8 for f32), c and d in layout Layout.
template <class T, int size, class Layout, int K, class Base>
struct Product {
    using D = rt<float, 64, 32, Layout, base_shape<size, size, 4>>;
    using A = rt<T, 64, K, row_l, Base>;
    using At = rt<T, K, 64, col_l, transposed_shape<Base>>;
    using B = rt<T, K, 32, col_l, transposed_shape<Base>>;
    using Bt = rt<T, 32, K, row_l, Base>;

    template <class Left, class Right, class Multiply>
    KITTENS_DEVICE static void run(const Arguments& arguments, const Multiply& multiply) {
        Left a;
        Right b;
        D c, d;
        take(a, arguments.a);
        take(b, arguments.b);
        take(c, arguments.c);
        multiply(d, a, b, c);
        give(arguments.out, d);
    }
};
#define PRODUCT(T, size, Layout, K, run)                                     \
    using T##_##size##_##Layout##_##run =                                    \
        Product<T, size, Layout, K, base_shape<size, 64 * run / size, run>>; \
    PRODUCT_VERB(T##_##size##_##Layout##_##run, AB, A, B)                    \
    PRODUCT_VERB(T##_##size##_##Layout##_##run, ABt, A, Bt)                  \
    PRODUCT_VERB(T##_##size##_##Layout##_##run, AtB, At, B)                  \
    PRODUCT_VERB(T##_##size##_##Layout##_##run, AtBt, At, Bt)
#define PRODUCT_VERB(P, verb, Left, Right)                                                              \
    TEST_KERNEL(mma_##verb##_##P, 64) {                                                                 \
        P::run<P::Left, P::Right>(arguments, [](auto& d, const auto& a, const auto& b, const auto& c) { \
            mma_##verb(d, a, b, c);                                                                     \
        });                                                                                             \
    }
PRODUCT(bf16, 16, row_l, 64, 8)
PRODUCT(bf16, 16, col_l, 64, 8)
PRODUCT(bf16, 32, row_l, 64, 8)
PRODUCT(bf16, 32, col_l, 64, 8)
PRODUCT(half, 16, row_l, 64, 8)
PRODUCT(half, 16, col_l, 64, 8)
PRODUCT(half, 32, row_l, 64, 8)
PRODUCT(half, 32, col_l, 64, 8)
PRODUCT(float, 16, row_l, 8, 1)
PRODUCT(float, 16, col_l, 8, 1)
PRODUCT(float, 32, row_l, 8, 1)
PRODUCT(float, 32, col_l, 8, 1)

template <class To, class From>
KITTENS_DEVICE void converted(const Arguments& arguments) {
    From source;
    To destination;
    take(source, arguments.a);
    copy(destination, source);
    give(arguments.out, destination);
}
#define CONVERT(To, From)                                                                         \
    TEST_KERNEL(convert_##From##_##To, 64) {                                                      \
        converted<rt<To, 32, 32, row_l, rt_16x16>, rt<From, 32, 32, row_l, rt_16x16>>(arguments); \
    }
CONVERT(bf16, float)
CONVERT(half, float)
CONVERT(float, bf16)
CONVERT(float, half)
CONVERT(half, bf16)
CONVERT(bf16, half)

// Two groups of four waves hand a token back and forth: in every phase the waves that multiply see what the
// other group wrote in its last move, and never in the same half phase.
TEST_KERNEL(ping_pong, 512) {
    __attribute__((shared)) static int turn[8];
    const int wave = wave_id();
    int* out = static_cast<int*>(arguments.out);
    int position = 0;
    lds_write(0, (shared_byte*)&turn[wave]);
    barrier();
    stagger_wave_groups(wave, [&] {
        for (int round = 0; round < 3; ++round)
            ping_pong<0, 4, loads_to_registers>(
                // Two products in each phase: the second stands behind the barrier.
                work<every_slot{0, 4, 2}>([&](auto product) KITTENS_INLINE {
                    if constexpr (product.value % 2 == 0) {
                        const int other = lds_read<int>((shared_byte*)&turn[wave ^ 4]);
                        if (lane_id() == 0) out[wave * 12 + position] = other;
                        ++position;
                    }
                }),
                work<every_slot{0, 4}>([&](auto phase) KITTENS_INLINE {
                    lds_write(round * 4 + phase.value + 1, (shared_byte*)&turn[wave]);
                }));
    });
}
