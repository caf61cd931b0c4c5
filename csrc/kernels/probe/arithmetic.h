// kernels/probe/arithmetic.h: matrix products, conversions, and the layout of transposed reads.
// SPDX-License-Identifier: MIT
#pragma once
#include "memory.h"

namespace hipkittens::probe {

// Copies the input into LDS, dword i at 4 i; then one transposed read, of 16-, 8-, 4- or 6-bit elements: lane
// l begins at 8 l, or 12 l.
template <NoConfig config>
struct TransposedRead : OneWave {
    static constexpr int lds_bytes = 64 * 12;

    KITTENS_DEVICE static void run(const ProbeArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t lane = kittens::lane_id();
        for (int i = 0; i < 3; ++i)
            kittens::lds_write(load(arguments, i * 64 + lane), lds + (i * 64 + lane) * 4);
        kittens::wait<0, 0>();
        kittens::vec<uint32_t, 3> found = {};
#define PROBE_READ(instruction)                                    \
    {                                                              \
        kittens::vec<uint32_t, 2> two;                             \
        asm volatile(instruction " %0, %1\n\ts_waitcnt lgkmcnt(0)" \
                     : "=&v"(two)                                  \
                     : "v"(lds + lane * 8)                         \
                     : "memory");                                  \
        found[0] = two[0], found[1] = two[1];                      \
    }
        if (arguments.which == 16)
            PROBE_READ("ds_read_b64_tr_b16")
        else if (arguments.which == 8)
            PROBE_READ("ds_read_b64_tr_b8")
        else if (arguments.which == 4)
            PROBE_READ("ds_read_b64_tr_b4")
        else
            asm volatile("ds_read_b96_tr_b6 %0, %1\n\ts_waitcnt lgkmcnt(0)"
                         : "=&v"(found)
                         : "v"(lds + lane * 12)
                         : "memory");
#undef PROBE_READ
        for (int i = 0; i < 3; ++i) store(arguments, lane * 3 + i, found[i]);
    }
};

// D = A B^T + C of one 16x16 tile: the input holds four dwords per lane for A, then for B, then for C.
template <NoConfig config>
struct MatrixProduct : OneWave {
    static constexpr int lds_bytes = 0;

    KITTENS_DEVICE static void run(const ProbeArguments& arguments) {
        using kittens::vec;
        const uint32_t lane = kittens::lane_id();
        const auto* four = (global<const kittens::b128>)arguments.input;
        const kittens::b128 a = four[lane], b = four[64 + lane];
        vec<float, 4> c = __builtin_bit_cast(vec<float, 4>, four[128 + lane]);
        const auto multiply = [&]<class V>(V) {
            c = kittens::matrix_16x16(__builtin_bit_cast(V, a), __builtin_bit_cast(V, b), c);
        };
        const auto format = static_cast<MatrixFormat>(arguments.which);
        if (format == MatrixFormat::bf16)
            multiply(vec<kittens::bf16, 8>{});
        else if (format == MatrixFormat::f16)
            multiply(vec<kittens::half, 8>{});
        else if (format == MatrixFormat::fp8)
            multiply(vec<kittens::fp8_e4m3, 16>{});
        else
            c = kittens::matrix_16x16(__builtin_bit_cast(float, a[0]), __builtin_bit_cast(float, b[0]), c);
        for (int i = 0; i < 4; ++i)
            store(arguments, lane * 4 + i, __builtin_bit_cast(uint32_t, static_cast<float>(c[i])));
    }
};

// Computes eight results for each float of the input.
template <NoConfig config>
struct Conversion {
    static constexpr int threads = 256, waves_per_simd = 1, lds_bytes = 0;

    KITTENS_DEVICE static void run(const ProbeArguments& arguments) {
        const uint32_t thread = kittens::workgroup_id_x() * threads + kittens::thread_id();
        const float x = __builtin_bit_cast(float, load(arguments, thread));
        const uint32_t code = thread & 0xff;
        uint32_t from_fp8, from_bf8, bf16 = 0;
        asm("v_cvt_f32_fp8 %0, %1" : "=v"(from_fp8) : "v"(code));
        asm("v_cvt_f32_bf8 %0, %1" : "=v"(from_bf8) : "v"(code));
        if constexpr (kittens::target.converts_to_bf16)
            asm("v_cvt_pk_bf16_f32 %0, %1, 0" : "=v"(bf16) : "v"(x));
        const uint32_t results[8] = {
            kittens::pack_fp8<false>(x, 0.0f, 0) & 0xff,
            kittens::pack_bf8<false>(x, 0.0f, 0) & 0xff,
            from_fp8,
            from_bf8,
            bf16,
            __builtin_bit_cast(uint16_t, static_cast<kittens::half>(x)),
            __builtin_bit_cast(uint32_t, kittens::exponential_base_2(x)),
            __builtin_bit_cast(uint32_t, kittens::logarithm_base_2(x)),
        };
        for (int i = 0; i < 8; ++i) store(arguments, thread * 8 + i, results[i]);
    }
};

}  // namespace hipkittens::probe
