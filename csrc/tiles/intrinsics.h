// tiles/intrinsics.h: the only file with compiler builtins and inline assembly.
// SPDX-License-Identifier: MIT
#pragma once
#include "element.h"
#include "target.h"
#include "wait_counts.h"

namespace kittens {

KITTENS_DEVICE int lane_id() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }
// The same, computed where it is called instead of kept in a register until then.
KITTENS_DEVICE int recompute_lane_id() {
    uint32_t zero = 0;
    asm volatile("" : "+v"(zero));
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, zero));
}
KITTENS_DEVICE int thread_id() { return __builtin_amdgcn_workitem_id_x(); }
KITTENS_DEVICE int wave_id() { return __builtin_amdgcn_readfirstlane(thread_id() / wave_lanes); }
KITTENS_DEVICE uint32_t workgroup_id_x() { return __builtin_amdgcn_workgroup_id_x(); }
KITTENS_DEVICE uint32_t workgroup_id_y() { return __builtin_amdgcn_workgroup_id_y(); }
KITTENS_DEVICE uint32_t workgroup_id_z() { return __builtin_amdgcn_workgroup_id_z(); }
KITTENS_DEVICE uint32_t uniform(uint32_t value) { return __builtin_amdgcn_readfirstlane(value); }

// Waits, barriers, scheduling.

KITTENS_DEVICE void compiler_fence() { asm volatile("" ::: "memory"); }

template <int Outstanding>
KITTENS_DEVICE void wait_vector_memory() {
    static_assert(Outstanding >= 0 && Outstanding < 63, "vmcnt has 6 bits");
    compiler_fence();
    __builtin_amdgcn_s_waitcnt(wait_immediate(Outstanding, any_lds));
    compiler_fence();
}
// Both at once; any_vector_memory or any_lds waits for nothing of that kind.
template <int VectorMemory, int Lds>
KITTENS_DEVICE void wait() {
    static_assert(VectorMemory >= 0 && VectorMemory <= any_vector_memory && Lds >= 0 && Lds <= any_lds);
    compiler_fence();
    __builtin_amdgcn_s_waitcnt(wait_immediate(VectorMemory, Lds));
    compiler_fence();
}
template <int Outstanding>
KITTENS_DEVICE void wait_lds() {
    static_assert(Outstanding >= 0 && Outstanding < 15, "lgkmcnt has 4 bits");
    compiler_fence();
    __builtin_amdgcn_s_waitcnt(wait_immediate(any_vector_memory, Outstanding));
    compiler_fence();
}

// All LDS accesses of the workgroup before it are visible after it.
KITTENS_DEVICE void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}
// The bare instruction: no memory operation is waited for.
KITTENS_DEVICE void s_barrier() {
    compiler_fence();
    __builtin_amdgcn_s_barrier();
    compiler_fence();
}
template <int Priority>
KITTENS_DEVICE void set_priority() {
    __builtin_amdgcn_s_setprio(Priority);
}
// Nothing is scheduled across it.
KITTENS_DEVICE void schedule_fence() { __builtin_amdgcn_sched_barrier(0); }

// Buffers.

// Raw 32-bit data, no swizzling: dword 3 of a gfx9 descriptor (LLVM AMDGPUUsage, buffer resources).
inline constexpr uint32_t buffer_flags = 0x00020000;

struct buffer {
    const char* base;
    uint32_t bytes;
    uint32_t scalar_offset = 0;  // added to every lane's offset, and counted by the range check; below bytes
    KITTENS_DEVICE __amdgpu_buffer_rsrc_t descriptor() const {
        return __builtin_amdgcn_make_buffer_rsrc(const_cast<char*>(base), 0, bytes, buffer_flags);
    }
    KITTENS_DEVICE vec<uint32_t, 4> words() const {
        // Device addresses have 48 bits: the stride field above them stays zero.
        const uint64_t address = reinterpret_cast<uint64_t>(base);
        return {static_cast<uint32_t>(address), static_cast<uint32_t>(address >> 32), bytes, buffer_flags};
    }
};

template <class V>
KITTENS_DEVICE V buffer_load(buffer source, uint32_t offset) {
    if constexpr (sizeof(V) == 16)
        return __builtin_bit_cast(
            V, __builtin_amdgcn_raw_buffer_load_b128(source.descriptor(), offset, source.scalar_offset, 0));
    else if constexpr (sizeof(V) == 8)
        return __builtin_bit_cast(
            V, __builtin_amdgcn_raw_buffer_load_b64(source.descriptor(), offset, source.scalar_offset, 0));
    else if constexpr (sizeof(V) == 4)
        return __builtin_bit_cast(
            V, __builtin_amdgcn_raw_buffer_load_b32(source.descriptor(), offset, source.scalar_offset, 0));
    else if constexpr (sizeof(V) == 1)
        return __builtin_bit_cast(
            V, __builtin_amdgcn_raw_buffer_load_b8(source.descriptor(), offset, source.scalar_offset, 0));
    else
        return __builtin_bit_cast(
            V, __builtin_amdgcn_raw_buffer_load_b16(source.descriptor(), offset, source.scalar_offset, 0));
}

template <class V>
KITTENS_DEVICE void buffer_store(V value, buffer destination, uint32_t offset) {
    if constexpr (sizeof(V) == 16)
        __builtin_amdgcn_raw_buffer_store_b128(__builtin_bit_cast(b128, value), destination.descriptor(),
                                               offset, destination.scalar_offset, 0);
    else if constexpr (sizeof(V) == 8)
        __builtin_amdgcn_raw_buffer_store_b64(__builtin_bit_cast(vec<uint32_t, 2>, value),
                                              destination.descriptor(), offset, destination.scalar_offset, 0);
    else if constexpr (sizeof(V) == 4)
        __builtin_amdgcn_raw_buffer_store_b32(__builtin_bit_cast(uint32_t, value), destination.descriptor(),
                                              offset, destination.scalar_offset, 0);
    else
        __builtin_amdgcn_raw_buffer_store_b16(__builtin_bit_cast(uint16_t, value), destination.descriptor(),
                                              offset, destination.scalar_offset, 0);
}

// 16 bytes per lane and offset from memory to LDS: those of offsets[n] to `destination` + 1024 n + 16 x lane.
// Assembly, not the builtin: behind the builtin the compiler waits for all of vmcnt before every later LDS
// read it cannot tell apart (SIInsertWaitcnts, LDS DMA). The caller waits with wait_vector_memory. All loads
// share m0; the instructions' own offsets tell them apart, and count on the memory side too. One wait state
// is needed between a scalar write of m0 and its use (CDNA3 ISA manual 4.5).
template <int Count>
KITTENS_DEVICE void buffer_load_to_lds(buffer source, const uint32_t* offsets, shared_byte* destination) {
    static_assert(Count >= 1 && Count <= 4, "the offset field has 12 bits");
    const uint32_t address = reinterpret_cast<uint32_t>(destination);
#define KITTENS_LOAD(lane, bytes) "\n\tbuffer_load_dwordx4 " lane ", %1, %2 offen offset:" bytes " lds"
#define KITTENS_COMMON "{m0}"(address), "s"(source.words()), "s"(source.scalar_offset), "v"(offsets[0])
    if constexpr (Count == 1)
        asm volatile("s_nop 0" KITTENS_LOAD("%3", "0")::KITTENS_COMMON : "memory");
    else if constexpr (Count == 2)
        asm volatile("s_nop 0" KITTENS_LOAD("%3", "0") KITTENS_LOAD("%4", "1024")::KITTENS_COMMON,
                     "v"(offsets[1])
                     : "memory");
    else if constexpr (Count == 3)
        asm volatile("s_nop 0" KITTENS_LOAD("%3", "0") KITTENS_LOAD("%4", "1024")
                         KITTENS_LOAD("%5", "2048")::KITTENS_COMMON,
                     "v"(offsets[1]), "v"(offsets[2])
                     : "memory");
    else
        asm volatile("s_nop 0" KITTENS_LOAD("%3", "0") KITTENS_LOAD("%4", "1024") KITTENS_LOAD("%5", "2048")
                         KITTENS_LOAD("%6", "3072")::KITTENS_COMMON,
                     "v"(offsets[1]), "v"(offsets[2]), "v"(offsets[3])
                     : "memory");
#undef KITTENS_LOAD
#undef KITTENS_COMMON
}

// One of them: the load of offset n.
template <int Index>
KITTENS_DEVICE void buffer_load_to_lds_one(buffer source, uint32_t offset, shared_byte* destination) {
    static_assert(Index >= 0 && Index < 4, "the offset field has 12 bits");
    asm volatile("s_nop 0\n\tbuffer_load_dwordx4 %3, %1, %2 offen offset:%4 lds" ::"{m0}"(
                     reinterpret_cast<uint32_t>(destination)),
                 "s"(source.words()), "s"(source.scalar_offset), "v"(offset), "n"(Index * 1024)
                 : "memory");
}

// LDS.

// Four 16-bit elements down a column: within every 16 lanes, lane l reads row l/4, columns 4(l%4)..+3 of a
// 4x16 block and receives column l (CDNA4 ISA manual, transposed LDS reads).
template <class T>
KITTENS_DEVICE vec<T, 4> lds_read_transposed(shared_byte* address) {
    static_assert(is_16bit<T>, "ds_read_b64_tr_b16 moves 16-bit elements");
    using four = vec<short, 4>;
    return __builtin_bit_cast(vec<T, 4>,
                              __builtin_amdgcn_ds_read_tr16_b64_v4i16((shared_pointer<four>)address));
}

template <class V>
KITTENS_DEVICE V lds_read(shared_byte* address) {
    return *(shared_pointer<V>)address;
}
template <class V>
KITTENS_DEVICE void lds_write(V value, shared_byte* address) {
    *(shared_pointer<V>)address = value;
}

// Opaque to the optimiser, so that later additions fold into the offset field of a DS instruction.
template <class V>
KITTENS_DEVICE V opaque(V value) {
    asm("" : "+v"(value));
    return value;
}
// The same for a value that all lanes share: the compiler cannot derive it from others, nor others from it, and keeps
// just this one from turn to turn of a loop.
KITTENS_DEVICE int64_t opaque_scalar(int64_t value) {
    asm("" : "+s"(value));
    return value;
}

// The value is computed here and not where it is used, where what it is made of would still occupy registers.
template <class V>
KITTENS_DEVICE void materialize(V& value) {
    asm volatile("" : "+v"(value));
}

// An operand of matrix instructions that stays in the accumulation registers, which nothing else asks for.
template <class V>
KITTENS_DEVICE void keep_in_accumulator(V& value) {
    asm("" : "+a"(value));
}

// Two floats that the compiler does not join with others to longer vectors, whose arithmetic would then be in one place.
KITTENS_DEVICE void prevent_vectorization(vec<float, 2>& pair) { asm("" : "+v"(pair)); }

// The kernel's argument struct, read from memory where it is called: what only the end of a kernel needs then
// occupies no scalar register before.
template <class Arguments>
KITTENS_DEVICE Arguments reload_arguments() {
    auto* arguments = __builtin_amdgcn_kernarg_segment_ptr();
    asm volatile("" : "+s"(arguments));
    return *(const __attribute__((address_space(4))) Arguments*)arguments;
}

// Lanes.

// A value of up to 32 bits through a function of 32 bits.
template <class T, class Function>
KITTENS_DEVICE T as_32_bits(T value, const Function& function) {
    if constexpr (sizeof(T) == 2)
        return __builtin_bit_cast(T, static_cast<uint16_t>(function(__builtin_bit_cast(uint16_t, value))));
    else
        return __builtin_bit_cast(T, static_cast<uint32_t>(function(__builtin_bit_cast(uint32_t, value))));
}
// The value of lane `lane`, which may differ from lane to lane.
template <class T>
KITTENS_DEVICE T read_lane(T value, int lane) {
    return as_32_bits(value, [=](int bits) { return __builtin_amdgcn_ds_bpermute(lane * 4, bits); });
}
// The value of lane l ^ 32, l ^ 16.
template <class T>
KITTENS_DEVICE T exchange_32(T value) {
    if constexpr (target.lane_swaps)
        return as_32_bits(value, [](uint32_t bits) {
            // Two copies swap halves: one then holds the lower half twice, the other the upper half.
            const auto swapped = __builtin_amdgcn_permlane32_swap(bits, bits, false, false);
            return lane_id() < 32 ? swapped[1] : swapped[0];
        });
    else
        return read_lane(value, lane_id() ^ 32);
}
template <class T>
KITTENS_DEVICE T exchange_16(T value) {
    // ds_swizzle in groups of 32 lanes: and 0x1f, xor 0x10 (LLVM AMDGPUUsage, swizzle(BITMASK_PERM)).
    return as_32_bits(value, [](int bits) { return __builtin_amdgcn_ds_swizzle(bits, 0x1f | 0x10 << 10); });
}
// The value Amount lanes on, around every 16 lanes (DPP row_ror).
template <int Amount, class T>
KITTENS_DEVICE T rotate_in_16(T value) {
    return as_32_bits(value, [](int bits) {
        // No lane is left out, so there is no old value to keep: the move becomes part of the next instruction.
        return __builtin_amdgcn_mov_dpp(bits, 0x120 + Amount, 0xf, 0xf, true);
    });
}
// The sums over every 16 lanes, the same bits in each of them.
KITTENS_DEVICE float sum_of_16_lanes(float value) {
    value += rotate_in_16<8>(value);
    value += rotate_in_16<4>(value);
    value += rotate_in_16<2>(value);
    return value + rotate_in_16<1>(value);
}
// The sum over the 64 lanes, the same bits in each, without LDS: around every 16 lanes, then the last lane of each row to the
// next one (DPP row_bcast:15), that of row 1 to row 3 (row_bcast:31), and from the last lane, where all of it is, to all. What
// other rows get is of no use, but a move that leaves no lane out becomes part of the addition.
template <int Control>
KITTENS_DEVICE float moved_or_zero(float value) {
    return __builtin_bit_cast(
        float, __builtin_amdgcn_mov_dpp(__builtin_bit_cast(int, value), Control, 0xf, 0xf, true));
}
KITTENS_DEVICE float sum_of_lanes(float value) {
    value = sum_of_16_lanes(value);
    value += moved_or_zero<0x142>(value);
    value += moved_or_zero<0x143>(value);
    return __builtin_bit_cast(float, __builtin_amdgcn_readlane(__builtin_bit_cast(int, value), 63));
}
// In every 4 lanes, the values of lanes First, Second, Third and Fourth of them (DPP quad_perm).
template <int First, int Second, int Third, int Fourth, class T>
KITTENS_DEVICE T permute_in_4(T value) {
    return as_32_bits(value, [](int bits) {
        return __builtin_amdgcn_update_dpp(bits, bits, First | Second << 2 | Third << 4 | Fourth << 6, 0xf,
                                           0xf, false);
    });
}

// The value of lane Lane of every 16 lanes (DPP row_newbcast).
template <int Lane, class T>
KITTENS_DEVICE T broadcast_in_16(T value) {
    return as_32_bits(value,
                      [](int bits) { return __builtin_amdgcn_mov_dpp(bits, 0x150 + Lane, 0xf, 0xf, true); });
}

// Adds in L2, in any order; nothing comes back. All lanes share the base.
KITTENS_DEVICE void atomic_add(char* base, uint32_t offset, int32_t value) {
    auto* address = (__attribute__((address_space(1))) char*)base + offset;
    __hip_atomic_fetch_add((__attribute__((address_space(1))) int32_t*)address, value, __ATOMIC_RELAXED,
                           __HIP_MEMORY_SCOPE_AGENT);
}
KITTENS_DEVICE bool any_lane(bool value) { return __builtin_amdgcn_ballot_w64(value) != 0; }

// One instruction each; v_exp_f32 and v_log_f32 flush denormals, the rest is within 1 ulp (CDNA3 ISA manual,
// VOP1).
KITTENS_DEVICE float exponential_base_2(float x) { return __builtin_amdgcn_exp2f(x); }
KITTENS_DEVICE float logarithm_base_2(float x) { return __builtin_amdgcn_logf(x); }
KITTENS_DEVICE float hardware_square_root(float x) { return __builtin_amdgcn_sqrtf(x); }
KITTENS_DEVICE float hardware_reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
KITTENS_DEVICE float hardware_reciprocal_square_root(float x) { return __builtin_amdgcn_rsqf(x); }
KITTENS_DEVICE float absolute_value(float x) { return __builtin_fabsf(x); }
KITTENS_DEVICE float larger(float x, float y) { return __builtin_fmaxf(x, y); }
KITTENS_DEVICE float smaller(float x, float y) { return __builtin_fminf(x, y); }

// x = fraction * 2^exponent with 0.5 <= |fraction| < 1; 0 for 0 and for what is not finite.
KITTENS_DEVICE int binary_exponent(float x) { return __builtin_amdgcn_frexp_expf(x); }
KITTENS_DEVICE float times_power_of_2(float x, int exponent) { return __builtin_amdgcn_ldexpf(x, exponent); }

// Bytes chosen from low (selectors 0-3) and high (4-7); a selector per result byte.
KITTENS_DEVICE uint32_t permute_bytes(uint32_t high, uint32_t low, uint32_t selectors) {
    return __builtin_amdgcn_perm(high, low, selectors);
}

// Matrix.

// D += A B^T over one base tile. Operands of 8 elements hold K = 32 (16 rows) or 16 (32 rows); gfx942's
// instructions take half of that, so there the product is two of them.
template <class T>
KITTENS_DEVICE vec<float, 4> matrix_16x16(vec<T, 8> a, vec<T, 8> b, vec<float, 4> c) {
    if constexpr (target.matrix_k_16bit == 32) {
        if constexpr (same_type<T, bf16>)
            return __builtin_amdgcn_mfma_f32_16x16x32_bf16(a, b, c, 0, 0, 0);
        else
            return __builtin_amdgcn_mfma_f32_16x16x32_f16(a, b, c, 0, 0, 0);
    } else if constexpr (same_type<T, bf16>) {
        using four = vec<short, 4>;
        c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(four, vec<T, 4>(a.lo)),
                                                      __builtin_bit_cast(four, vec<T, 4>(b.lo)), c, 0, 0, 0);
        return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
            __builtin_bit_cast(four, vec<T, 4>(a.hi)), __builtin_bit_cast(four, vec<T, 4>(b.hi)), c, 0, 0, 0);
    } else {
        c = __builtin_amdgcn_mfma_f32_16x16x16f16(a.lo, b.lo, c, 0, 0, 0);
        return __builtin_amdgcn_mfma_f32_16x16x16f16(a.hi, b.hi, c, 0, 0, 0);
    }
}

// 16 elements of 8 bits hold K = 64, two instructions on both targets.
KITTENS_DEVICE vec<float, 4> matrix_16x16(vec<fp8_e4m3, 16> a, vec<fp8_e4m3, 16> b, vec<float, 4> c) {
    using two = vec<long, 2>;
    const two left = __builtin_bit_cast(two, a), right = __builtin_bit_cast(two, b);
    c = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(left[0], right[0], c, 0, 0, 0);
    return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(left[1], right[1], c, 0, 0, 0);
}

// gfx942's own step, of half the K.
template <class T>
KITTENS_DEVICE vec<float, 16> matrix_32x32(vec<T, 4> a, vec<T, 4> b, vec<float, 16> c) {
    static_assert(target.matrix_k_16bit == 16);
    if constexpr (same_type<T, bf16>) {
        using four = vec<short, 4>;
        return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(four, a),
                                                        __builtin_bit_cast(four, b), c, 0, 0, 0);
    } else {
        return __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, 0, 0, 0);
    }
}
template <class T>
KITTENS_DEVICE vec<float, 16> matrix_32x32(vec<T, 8> a, vec<T, 8> b, vec<float, 16> c) {
    if constexpr (target.matrix_k_16bit == 32) {
        if constexpr (same_type<T, bf16>)
            return __builtin_amdgcn_mfma_f32_32x32x16_bf16(a, b, c, 0, 0, 0);
        else
            return __builtin_amdgcn_mfma_f32_32x32x16_f16(a, b, c, 0, 0, 0);
    } else {
        c = matrix_32x32<T>(vec<T, 4>(a.lo), vec<T, 4>(b.lo), c);
        return matrix_32x32<T>(vec<T, 4>(a.hi), vec<T, 4>(b.hi), c);
    }
}

KITTENS_DEVICE vec<float, 4> matrix_16x16(float a, float b, vec<float, 4> c) {
    return __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, 0, 0, 0);
}
KITTENS_DEVICE vec<float, 16> matrix_32x32(float a, float b, vec<float, 16> c) {
    return __builtin_amdgcn_mfma_f32_32x32x2f32(a, b, c, 0, 0, 0);
}

}  // namespace kittens
