// simulator/execute/memory_lanes.h: moves data between memory, per-lane dwords, and register rows.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/execute/lanes.h"
#include "simulator/memory/pending_queue.h"

// g++ 12 warns about the undefined operand inside its own AVX-512 intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef uint64_t u64x2 __attribute__((vector_size(16)));

inline constexpr uint64_t all_lanes = ~uint64_t{0};

// Where a lane's bytes are, from LDS offsets or from host addresses.
struct LdsPointers {
    const uint8_t* base;
    const uint32_t* offset;
    __attribute__((always_inline)) const uint8_t* operator[](int lane) const { return base + offset[lane]; }
};
struct HostPointers {
    const uint64_t* address;
    uint64_t base;  // added to all addresses
    __attribute__((always_inline)) const uint8_t* operator[](int lane) const {
        return reinterpret_cast<const uint8_t*>(address[lane] + base);
    }
};

template <class T>
HIPKITTENS_INLINE T load_unaligned(const uint8_t* place) {
    T value;
    memcpy(&value, place, sizeof value);
    return value;
}
template <class T>
HIPKITTENS_INLINE void store_unaligned(uint8_t* place, T value) {
    memcpy(place, &value, sizeof value);
}

// Sixteen lanes of a register row: `lanes` and `valid` are 64-bit masks; an invalid lane gets 0.
HIPKITTENS_INLINE void write_row(uint8_t* row, int quarter, u32x16 value, uint64_t lanes, uint64_t valid) {
    const uint32_t write = static_cast<uint32_t>(lanes >> (16 * quarter)) & 0xffff;
    const uint32_t good = static_cast<uint32_t>(valid >> (16 * quarter)) & 0xffff;
    uint8_t* place = row + 64 * quarter;
#if defined(__AVX512F__)
    const __m512i kept = _mm512_maskz_mov_epi32(static_cast<__mmask16>(good), (__m512i)value);
    _mm512_mask_store_epi32(place, static_cast<__mmask16>(write), kept);
#else
    if (good != 0xffff) value &= (u32x16)lane_mask(good);
    u32x16& target = *reinterpret_cast<u32x16*>(place);
    if (write == 0xffff) {
        target = value;
    } else {
        const u32x16 enabled = (u32x16)lane_mask(write);
        target = (value & enabled) | (target & ~enabled);
    }
#endif
}

#if defined(__AVX512F__)
// Whether any bit is set.
template <class Vector>
HIPKITTENS_INLINE bool is_any(Vector bits) {
    return _mm512_test_epi32_mask((__m512i)bits, (__m512i)bits) != 0;
}
#endif

// Rows from an array with one dword per lane.
HIPKITTENS_INLINE void write_row_from(uint8_t* row, const uint32_t* values, uint64_t lanes, uint64_t valid) {
    for (int quarter = 0; quarter < 4; ++quarter) {
        write_row(row, quarter, *reinterpret_cast<const u32x16*>(values + 16 * quarter), lanes, valid);
    }
}

HIPKITTENS_INLINE void fill_rows(uint8_t* row, uint32_t rows, uint32_t pattern, uint64_t lanes) {
    for (uint32_t i = 0; i < rows; ++i) {
        for (int quarter = 0; quarter < 4; ++quarter) {
            write_row(row + 256 * i, quarter, u32x16{} + pattern, lanes, all_lanes);
        }
    }
}

#if !defined(__AVX512F__)
// Transposes 4 x 4 dwords.
HIPKITTENS_INLINE void transpose4(u32x4& a, u32x4& b, u32x4& c, u32x4& d) {
    const u32x4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
                ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const u32x4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5),
                cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    a = (u32x4)__builtin_shufflevector((u64x2)ab_low, (u64x2)cd_low, 0, 2);
    b = (u32x4)__builtin_shufflevector((u64x2)ab_low, (u64x2)cd_low, 1, 3);
    c = (u32x4)__builtin_shufflevector((u64x2)ab_high, (u64x2)cd_high, 0, 2);
    d = (u32x4)__builtin_shufflevector((u64x2)ab_high, (u64x2)cd_high, 1, 3);
}

// write_row for four lanes, given by the low bits of the masks.
HIPKITTENS_INLINE void write_four(uint8_t* place, u32x4 value, uint64_t lanes, uint64_t valid) {
    u32x4& target = *reinterpret_cast<u32x4*>(place);
    if (__builtin_expect((lanes & valid & 15) == 15, 1)) {
        target = value;
        return;
    }
    const u32x4 bit = {1, 2, 4, 8};
    const u32x4 write = (u32x4)(((u32x4{} + static_cast<uint32_t>(lanes & 15)) & bit) != 0);
    const u32x4 good = (u32x4)(((u32x4{} + static_cast<uint32_t>(valid & 15)) & bit) != 0);
    target = (value & good & write) | (target & ~write);
}
#endif

#if defined(__AVX512F__)
HIPKITTENS_INLINE __m512i gather_dwords(LdsPointers from, int quarter, int byte) {
    return _mm512_i32gather_epi32(_mm512_load_si512(from.offset + 16 * quarter), from.base + byte, 1);
}
HIPKITTENS_INLINE __m512i gather_dwords(HostPointers from, int quarter, int byte) {
    const uint8_t* base = reinterpret_cast<const uint8_t*>(from.base) + byte;
    const __m256i low = _mm512_i64gather_epi32(_mm512_load_si512(from.address + 16 * quarter), base, 1);
    const __m256i high = _mm512_i64gather_epi32(_mm512_load_si512(from.address + 16 * quarter + 8), base, 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
HIPKITTENS_INLINE __m512i gather_qwords(LdsPointers from, int eighth) {
    const __m256i offsets = _mm256_load_si256(reinterpret_cast<const __m256i*>(from.offset + 8 * eighth));
    return _mm512_i32gather_epi64(offsets, from.base, 1);
}
HIPKITTENS_INLINE __m512i gather_qwords(HostPointers from, int eighth) {
    return _mm512_i64gather_epi64(_mm512_load_si512(from.address + 8 * eighth),
                                  reinterpret_cast<const uint8_t*>(from.base), 1);
}
#endif

// Whether the lanes' bytes are contiguous. Without 64-byte vectors these are plain loops, which compilers
// vectorize better than wide vector types.
HIPKITTENS_INLINE bool is_contiguous(LdsPointers from, uint32_t bytes) {
    if (from.offset[63] - from.offset[0] != 63 * bytes) return false;
#if defined(__AVX512F__)
    const u32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    u32x16 difference = {};
    for (uint32_t quarter = 0; quarter < 4; ++quarter) {
        const u32x16 expected = (lane + 16 * quarter) * bytes + from.offset[0];
        difference |= *reinterpret_cast<const u32x16*>(from.offset + 16 * quarter) ^ expected;
    }
    return !is_any(difference);
#else
    uint32_t difference = 0;
    for (uint32_t lane = 0; lane < 64; ++lane)
        difference |= from.offset[lane] ^ (from.offset[0] + lane * bytes);
    return difference == 0;
#endif
}
HIPKITTENS_INLINE bool is_contiguous(HostPointers from, uint32_t bytes) {
    if (from.address[63] - from.address[0] != 63 * bytes) return false;
#if defined(__AVX512F__)
    const u64x8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
    u64x8 difference = {};
    for (uint64_t eighth = 0; eighth < 8; ++eighth) {
        const u64x8 expected = (lane + 8 * eighth) * bytes + from.address[0];
        difference |= *reinterpret_cast<const u64x8*>(from.address + 8 * eighth) ^ expected;
    }
    return !is_any(difference);
#else
    uint64_t difference = 0;
    for (uint64_t lane = 0; lane < 64; ++lane)
        difference |= from.address[lane] ^ (from.address[0] + lane * bytes);
    return difference == 0;
#endif
}

// Loads `dwords` consecutive dwords of each lane into as many rows.
template <int dwords, class Pointers>
HIPKITTENS_INLINE void load_rows(Pointers from, uint8_t* rows, uint64_t lanes, uint64_t valid) {
    if constexpr (dwords == 1) {
        if (valid == all_lanes && is_contiguous(from, 4)) {
            const uint8_t* first = from[0];
            for (int quarter = 0; quarter < 4; ++quarter) {
                *reinterpret_cast<u32x16*>(rows + 64 * quarter) =
                    load_unaligned<u32x16>(first + 64 * quarter);
            }
            return;
        }
    }
    for (int quarter = 0; quarter < 4; ++quarter) {
#if defined(__AVX512F__)
        if constexpr (dwords == 4) {
            // z[k] receives lanes k, k+4, k+8, k+12, one in each 128-bit part; transposing within the parts
            // then leaves every dword's lanes in order.
            __m512i z[4];
            for (int k = 0; k < 4; ++k) {
                const int lane = 16 * quarter + k;
                __m512i value = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i*)from[lane]));
                value = _mm512_inserti32x4(value, _mm_loadu_si128((const __m128i*)from[lane + 4]), 1);
                value = _mm512_inserti32x4(value, _mm_loadu_si128((const __m128i*)from[lane + 8]), 2);
                z[k] = _mm512_inserti32x4(value, _mm_loadu_si128((const __m128i*)from[lane + 12]), 3);
            }
            const __m512i low01 = _mm512_unpacklo_epi32(z[0], z[1]),
                          high01 = _mm512_unpackhi_epi32(z[0], z[1]);
            const __m512i low23 = _mm512_unpacklo_epi32(z[2], z[3]),
                          high23 = _mm512_unpackhi_epi32(z[2], z[3]);
            write_row(rows, quarter, (u32x16)_mm512_unpacklo_epi64(low01, low23), lanes, valid);
            write_row(rows + 256, quarter, (u32x16)_mm512_unpackhi_epi64(low01, low23), lanes, valid);
            write_row(rows + 512, quarter, (u32x16)_mm512_unpacklo_epi64(high01, high23), lanes, valid);
            write_row(rows + 768, quarter, (u32x16)_mm512_unpackhi_epi64(high01, high23), lanes, valid);
        } else if constexpr (dwords == 2) {
            const __m512i low = gather_qwords(from, 2 * quarter), high = gather_qwords(from, 2 * quarter + 1);
            const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            write_row(rows, quarter, (u32x16)_mm512_permutex2var_epi32(low, even, high), lanes, valid);
            write_row(rows + 256, quarter, (u32x16)_mm512_permutex2var_epi32(low, odd, high), lanes, valid);
        } else {
            for (int dword = 0; dword < dwords; ++dword) {
                write_row(rows + 256 * dword, quarter, (u32x16)gather_dwords(from, quarter, 4 * dword), lanes,
                          valid);
            }
        }
#else
        if constexpr (dwords == 4) {
            for (int first = 16 * quarter; first < 16 * quarter + 16; first += 4) {
                u32x4 a = load_unaligned<u32x4>(from[first]), b = load_unaligned<u32x4>(from[first + 1]);
                u32x4 c = load_unaligned<u32x4>(from[first + 2]), d = load_unaligned<u32x4>(from[first + 3]);
                transpose4(a, b, c, d);
                write_four(rows + 4 * first, a, lanes >> first, valid >> first);
                write_four(rows + 256 + 4 * first, b, lanes >> first, valid >> first);
                write_four(rows + 512 + 4 * first, c, lanes >> first, valid >> first);
                write_four(rows + 768 + 4 * first, d, lanes >> first, valid >> first);
            }
        } else {
            if ((lanes & valid) == all_lanes) {
                for (int lane = 16 * quarter; lane < 16 * quarter + 16; ++lane) {
                    const uint8_t* place = from[lane];
                    for (int dword = 0; dword < dwords; ++dword) {
                        memcpy(rows + 256 * dword + 4 * lane, place + 4 * dword, 4);
                    }
                }
                continue;
            }
            alignas(64) uint32_t part[dwords][16];
            for (int lane = 0; lane < 16; ++lane) {
                const uint8_t* place = from[16 * quarter + lane];
                for (int dword = 0; dword < dwords; ++dword)
                    part[dword][lane] = load_unaligned<uint32_t>(place + 4 * dword);
            }
            for (int dword = 0; dword < dwords; ++dword) {
                write_row(rows + 256 * dword, quarter, *reinterpret_cast<u32x16*>(part[dword]), lanes, valid);
            }
        }
#endif
    }
}

// Operands of stores and atomics are stored lane by lane. capture_rows<dwords> fills `data`; the bytes of
// `lane` then start at captured_at<dwords>(lane). Three dwords occupy the space of four.
template <int dwords>
constexpr int captured_at(int lane) {
    if constexpr (dwords == 1) return 4 * lane;
#if defined(__AVX512F__)
    // The lane order that results from transposing within 128-bit parts.
    if constexpr (dwords == 2) return (lane & ~15) * 8 + (lane & 2) * 32 + (lane & 12) * 4 + (lane & 1) * 8;
    return (lane & ~15) * 16 + (lane & 3) * 64 + (lane & 12) * 4;
#else
    return lane * (dwords == 2 ? 8 : 16);
#endif
}

template <int dwords>
HIPKITTENS_INLINE void capture_rows(const uint8_t* rows, uint32_t* data) {
    const uint8_t* fourth = rows + 256 * (dwords == 4 ? 3 : 2);
    for (int quarter = 0; quarter < 4; ++quarter) {
        u32x16* target = reinterpret_cast<u32x16*>(data) + quarter * (dwords > 2 ? 4 : dwords);
        const u32x16 a = *reinterpret_cast<const u32x16*>(rows + 64 * quarter);
        if constexpr (dwords == 1) {
            *target = a;
            continue;
        }
        const u32x16 b = *reinterpret_cast<const u32x16*>(rows + 256 + 64 * quarter);
#if defined(__AVX512F__)
        const __m512i low01 = _mm512_unpacklo_epi32((__m512i)a, (__m512i)b);
        const __m512i high01 = _mm512_unpackhi_epi32((__m512i)a, (__m512i)b);
        if constexpr (dwords == 2) {
            target[0] = (u32x16)low01;
            target[1] = (u32x16)high01;
        } else {
            const __m512i c = _mm512_load_si512(rows + 512 + 64 * quarter),
                          d = _mm512_load_si512(fourth + 64 * quarter);
            const __m512i low23 = _mm512_unpacklo_epi32(c, d), high23 = _mm512_unpackhi_epi32(c, d);
            target[0] = (u32x16)_mm512_unpacklo_epi64(low01, low23);
            target[1] = (u32x16)_mm512_unpackhi_epi64(low01, low23);
            target[2] = (u32x16)_mm512_unpacklo_epi64(high01, high23);
            target[3] = (u32x16)_mm512_unpackhi_epi64(high01, high23);
        }
#else
        if constexpr (dwords == 2) {
            uint32_t* flat = reinterpret_cast<uint32_t*>(target);
            for (int lane = 0; lane < 16; ++lane) {
                flat[2 * lane] = a[lane];
                flat[2 * lane + 1] = b[lane];
            }
        } else {
            for (int group = 0; group < 4; ++group) {
                const uint32_t at = 64 * quarter + 16 * group;
                u32x4 p = load_unaligned<u32x4>(rows + at), q = load_unaligned<u32x4>(rows + 256 + at);
                u32x4 r = load_unaligned<u32x4>(rows + 512 + at), s = load_unaligned<u32x4>(fourth + at);
                transpose4(p, q, r, s);
                u32x4* out = reinterpret_cast<u32x4*>(target) + 4 * group;
                out[0] = p;
                out[1] = q;
                out[2] = r;
                out[3] = s;
            }
        }
#endif
    }
}

template <int bytes, class Pointers>
HIPKITTENS_INLINE void store_captured(Pointers to, const uint32_t* data, uint64_t valid) {
    constexpr int dwords = (bytes + 3) / 4;
    const uint8_t* captured = reinterpret_cast<const uint8_t*>(data);
    if (valid == all_lanes) {
        for (int quarter = 0; quarter < 64; quarter += 16) {
            const uint8_t* part = captured + captured_at<dwords>(quarter);
#pragma GCC unroll 16
            for (int lane = 0; lane < 16; ++lane) {
                memcpy(const_cast<uint8_t*>(to[quarter + lane]), part + captured_at<dwords>(lane), bytes);
            }
        }
        return;
    }
    for (; valid; valid &= valid - 1) {
        const int lane = __builtin_ctzll(valid);
        memcpy(const_cast<uint8_t*>(to[lane]), captured + captured_at<dwords>(lane), bytes);
    }
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
