// simulator/execute/atomics.cpp: atomic operations, performed lane by lane in lane order.
// SPDX-License-Identifier: MIT
#include "simulator/execute/atomics.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

namespace {

HIPKITTENS_INLINE float bits_to_f32(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
HIPKITTENS_INLINE uint32_t f32_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
HIPKITTENS_INLINE float as_float(uint32_t bits) { return bits_to_f32(bits); }
HIPKITTENS_INLINE double as_float(uint64_t bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}
HIPKITTENS_INLINE uint32_t as_bits(float value) { return f32_to_bits(value); }
HIPKITTENS_INLINE uint64_t as_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return bits;
}

float f16_to_f32(uint32_t half) {
    const uint32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
    if (exponent == 0x1f) return bits_to_f32(sign | 0x7f800000 | fraction << 13);
    if (exponent) return bits_to_f32(sign | (exponent + 112) << 23 | fraction << 13);
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // exact
    return sign ? -magnitude : magnitude;
}

// Round to nearest even.
uint32_t f32_to_f16(float value) {
    const uint32_t bits = f32_to_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return sign | 0x7e00 | (magnitude >> 13 & 0x1ff);
    if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and above
    if (magnitude < 0x38800000) {                       // below 2^-14: the sum aligns the fraction
        return sign | (f32_to_bits(bits_to_f32(magnitude) + 0.5f) - 0x3f000000);
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return sign | (rounded - 0x38000000) >> 13;
}

uint32_t f32_to_bf16(float value) {
    const uint32_t bits = f32_to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// An f32 sum rounded again to 11 or 8 bits is the correctly rounded sum, because 24 >= 2 * 11 + 2.
uint32_t packed_add_f16(uint32_t a, uint32_t b) {
    return f32_to_f16(f16_to_f32(a & 0xffff) + f16_to_f32(b & 0xffff)) |
           f32_to_f16(f16_to_f32(a >> 16) + f16_to_f32(b >> 16)) << 16;
}
uint32_t packed_add_bf16(uint32_t a, uint32_t b) {
    return f32_to_bf16(bits_to_f32(a << 16) + bits_to_f32(b << 16)) |
           f32_to_bf16(bits_to_f32(a & 0xffff0000) + bits_to_f32(b & 0xffff0000)) << 16;
}

template <class T>
struct Signed;
template <>
struct Signed<uint32_t> {
    using type = int32_t;
};
template <>
struct Signed<uint64_t> {
    using type = int64_t;
};

// The ISA manual's pseudocode: the resulting contents of memory.
template <Atomic operation, class T>
HIPKITTENS_INLINE T apply(T old, T data, T second) {
    using S = typename Signed<T>::type;
    if constexpr (operation == Atomic::add) return old + data;
    if constexpr (operation == Atomic::sub) return old - data;
    if constexpr (operation == Atomic::rsub) return data - old;
    if constexpr (operation == Atomic::inc) return old >= data ? 0 : old + 1;
    if constexpr (operation == Atomic::dec) return old == 0 || old > data ? data : old - 1;
    if constexpr (operation == Atomic::smin) return static_cast<S>(data) < static_cast<S>(old) ? data : old;
    if constexpr (operation == Atomic::smax) return static_cast<S>(data) >= static_cast<S>(old) ? data : old;
    if constexpr (operation == Atomic::umin) return data < old ? data : old;
    if constexpr (operation == Atomic::umax) return data >= old ? data : old;
    if constexpr (operation == Atomic::bit_and) return old & data;
    if constexpr (operation == Atomic::bit_or) return old | data;
    if constexpr (operation == Atomic::bit_xor) return old ^ data;
    if constexpr (operation == Atomic::mskor) return (old & ~data) | second;
    if constexpr (operation == Atomic::swap) return data;
    if constexpr (operation == Atomic::cmpswap) return old == second ? data : old;
    if constexpr (operation == Atomic::cmpst) return old == data ? second : old;
    if constexpr (operation == Atomic::cmpst_float) return as_float(old) == as_float(data) ? second : old;
    if constexpr (operation == Atomic::wrap) return old >= data ? old - data : old + second;
    if constexpr (operation == Atomic::add_float) return as_bits(as_float(old) + as_float(data));
    if constexpr (operation == Atomic::min_float) return as_float(data) < as_float(old) ? data : old;
    if constexpr (operation == Atomic::max_float) return as_float(data) > as_float(old) ? data : old;
    if constexpr (sizeof(T) == 4) {
        if constexpr (operation == Atomic::pk_add_f16) return packed_add_f16(old, data);
        if constexpr (operation == Atomic::pk_add_bf16) return packed_add_bf16(old, data);
    } else if constexpr (operation == Atomic::condxchg32) {
        const T low = data & 0x80000000u ? data & 0x7fffffffu : old & 0xffffffffu;
        const T high = data >> 63 ? data >> 32 & 0x7fffffffu : old >> 32;
        return high << 32 | low;
    }
}

template <Atomic operation, class T, Shared shared>
void complete_atomic(Wave* wave, PendingOperation* pending) {
    constexpr int dwords = sizeof(T) / 4;
    const uint8_t* first = reinterpret_cast<const uint8_t*>(pending->data);
    const uint8_t* second = reinterpret_cast<const uint8_t*>(pending->data + second_operand);
    uint32_t* row = reinterpret_cast<uint32_t*>(pending->rows);
    if (pending->dwords) {
        for (uint64_t zero = pending->lanes & ~pending->valid; zero; zero &= zero - 1) {
            for (int dword = 0; dword < dwords; ++dword) row[64 * dword + __builtin_ctzll(zero)] = 0;
        }
    }
    for (uint64_t left = pending->valid; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        const T data = load_unaligned<T>(first + captured_at<dwords>(lane));
        const T other = load_unaligned<T>(second + captured_at<dwords>(lane));
        T old;
        if constexpr (shared == Shared::lds) {
            uint8_t* place = wave->lds + pending->lds_address[lane];
            old = load_unaligned<T>(place);
            store_unaligned<T>(place, apply<operation, T>(old, data, other));
        } else {
            T* place = reinterpret_cast<T*>(pending->address[lane]);
            old = __atomic_load_n(place, __ATOMIC_RELAXED);
            while (!__atomic_compare_exchange_n(place, &old, apply<operation, T>(old, data, other), true,
                                                __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
            }
        }
        if (!pending->dwords) continue;
        row[lane] = static_cast<uint32_t>(old);
        if constexpr (dwords == 2) row[64 + lane] = static_cast<uint32_t>(old >> 32);
    }
}

template <Atomic operation, Shared shared>
PendingOperation::Complete of_width(uint8_t bytes) {
    return bytes == 4 ? complete_atomic<operation, uint32_t, shared>
                      : complete_atomic<operation, uint64_t, shared>;
}

template <Shared shared>
PendingOperation::Complete completion_of_operation(AtomicOperation atomic) {
    switch (atomic.operation) {
        case Atomic::add:
            return of_width<Atomic::add, shared>(atomic.bytes);
        case Atomic::sub:
            return of_width<Atomic::sub, shared>(atomic.bytes);
        case Atomic::rsub:
            return of_width<Atomic::rsub, shared>(atomic.bytes);
        case Atomic::inc:
            return of_width<Atomic::inc, shared>(atomic.bytes);
        case Atomic::dec:
            return of_width<Atomic::dec, shared>(atomic.bytes);
        case Atomic::smin:
            return of_width<Atomic::smin, shared>(atomic.bytes);
        case Atomic::smax:
            return of_width<Atomic::smax, shared>(atomic.bytes);
        case Atomic::umin:
            return of_width<Atomic::umin, shared>(atomic.bytes);
        case Atomic::umax:
            return of_width<Atomic::umax, shared>(atomic.bytes);
        case Atomic::bit_and:
            return of_width<Atomic::bit_and, shared>(atomic.bytes);
        case Atomic::bit_or:
            return of_width<Atomic::bit_or, shared>(atomic.bytes);
        case Atomic::bit_xor:
            return of_width<Atomic::bit_xor, shared>(atomic.bytes);
        case Atomic::mskor:
            return of_width<Atomic::mskor, shared>(atomic.bytes);
        case Atomic::swap:
            return of_width<Atomic::swap, shared>(atomic.bytes);
        case Atomic::cmpswap:
            return of_width<Atomic::cmpswap, shared>(atomic.bytes);
        case Atomic::cmpst:
            return of_width<Atomic::cmpst, shared>(atomic.bytes);
        case Atomic::cmpst_float:
            return of_width<Atomic::cmpst_float, shared>(atomic.bytes);
        case Atomic::wrap:
            return of_width<Atomic::wrap, shared>(atomic.bytes);
        case Atomic::add_float:
            return of_width<Atomic::add_float, shared>(atomic.bytes);
        case Atomic::min_float:
            return of_width<Atomic::min_float, shared>(atomic.bytes);
        case Atomic::max_float:
            return of_width<Atomic::max_float, shared>(atomic.bytes);
        case Atomic::condxchg32:
            return complete_atomic<Atomic::condxchg32, uint64_t, shared>;
        case Atomic::pk_add_f16:
            return complete_atomic<Atomic::pk_add_f16, uint32_t, shared>;
        case Atomic::pk_add_bf16:
            return complete_atomic<Atomic::pk_add_bf16, uint32_t, shared>;
    }
    return nullptr;
}

}  // namespace

PendingOperation::Complete atomic_completion(AtomicOperation operation, Shared shared) {
    return shared == Shared::lds ? completion_of_operation<Shared::lds>(operation)
                                 : completion_of_operation<Shared::device>(operation);
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
