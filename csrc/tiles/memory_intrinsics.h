// tiles/memory_intrinsics.h: accesses to buffers and to LDS.
// SPDX-License-Identifier: MIT
#pragma once
#include "wave_intrinsics.h"

namespace kittens {

// Buffers.

// Raw 32-bit data, no swizzling: dword 3 of a gfx9 descriptor (LLVM AMDGPUUsage, buffer resources).
inline constexpr uint32_t buffer_flags = 0x00020000;

struct buffer {
    const char* base;
    uint32_t bytes;
    uint32_t scalar_offset =
        0;  // added to every lane's offset, and included in the range check; less than bytes
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
    else if constexpr (sizeof(V) == 1)
        __builtin_amdgcn_raw_buffer_store_b8(__builtin_bit_cast(uint8_t, value), destination.descriptor(),
                                             offset, destination.scalar_offset, 0);
    else
        __builtin_amdgcn_raw_buffer_store_b16(__builtin_bit_cast(uint16_t, value), destination.descriptor(),
                                              offset, destination.scalar_offset, 0);
}

// Loads 16 bytes per lane and offset from memory to LDS: those of offsets[n] to `destination` + 1024 n + 16 x lane.
// Assembly instead of the builtin: after the builtin, the compiler waits for all of vmcnt before every later LDS
// read that it cannot tell apart (SIInsertWaitcnts, LDS DMA). The caller waits with wait_vector_memory. All
// loads share m0; the instructions' offset fields separate them, and apply to the memory address as well. One
// wait state is required between a scalar write of m0 and its use (CDNA3 ISA manual 4.5).
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

// A single one of these: the load of offset n.
template <int Index>
KITTENS_DEVICE void buffer_load_to_lds_one(buffer source, uint32_t offset, shared_byte* destination) {
    static_assert(Index >= 0 && Index < 4, "the offset field has 12 bits");
    asm volatile("s_nop 0\n\tbuffer_load_dwordx4 %3, %1, %2 offen offset:%4 lds" ::"{m0}"(
                     reinterpret_cast<uint32_t>(destination)),
                 "s"(source.words()), "s"(source.scalar_offset), "v"(offset), "n"(Index * 1024)
                 : "memory");
}

// Loads one dword per lane to `destination` + 256 Index + 4 x lane; the buffer begins 256 Index bytes early. Assembly
// and wait as above.
template <int Index = 0>
KITTENS_DEVICE void buffer_load_dword_to_lds(buffer source, uint32_t offset, shared_byte* destination) {
    static_assert(Index >= 0 && Index < 16, "the offset field has 12 bits");
    asm volatile("s_nop 0\n\tbuffer_load_dword %3, %1, %2 offen offset:%4 lds" ::"{m0}"(
                     reinterpret_cast<uint32_t>(destination)),
                 "s"(source.words()), "s"(source.scalar_offset), "v"(offset), "n"(Index * 256)
                 : "memory");
}

// LDS.

// Reads four 16-bit elements down a column: within every 16 lanes, lane l reads row l/4, columns
// 4(l%4)..+3 of a 4x16 block and receives column l (CDNA4 ISA manual, transposed LDS reads).
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

// Adds in L2, in unspecified order, without returning a value. All lanes share the base.
KITTENS_DEVICE void atomic_add(char* base, uint32_t offset, int32_t value) {
    auto* address = (__attribute__((address_space(1))) char*)base + offset;
    __hip_atomic_fetch_add((__attribute__((address_space(1))) int32_t*)address, value, __ATOMIC_RELAXED,
                           __HIP_MEMORY_SCOPE_AGENT);
}

}  // namespace kittens
