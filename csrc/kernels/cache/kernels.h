// kernels/cache/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/convert.h"
#include "../cache_store.h"
#include "../element_of.h"
#include "../quantization/codes.h"
#include "kinds.h"
#include "shared_scale.h"

namespace hipkittens::cache {

// Each thread copies eight features of one head of a token; workgroup_id_y selects the copy.
template <ElementConfig config>
struct CopyKernel {
    using T = typename element_of<config.element>::value;
    typedef kittens::raw_eight<T> vector __attribute__((aligned(4)));
    template <class V>
    using global = __attribute__((address_space(1))) V*;
    static constexpr int threads = cache::threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const CopyArguments& arguments) {
        const Copy& copy = arguments.copies[kittens::workgroup_id_y()];
        const uint32_t thread = kittens::workgroup_id_x() * threads + kittens::thread_id();
        const uint32_t rest = thread >> copy.together, tokens = copy.units.quotient(rest),
                       unit = rest - tokens * copy.units.value;
        const uint32_t token = (tokens << copy.together) + (thread & ((1u << copy.together) - 1));
        if (token >= arguments.tokens) return;
        const uint32_t head = copy.chunks.quotient(unit),
                       first = (unit - head * copy.chunks.value) * thread_features,
                       count = copy.features - first;
        auto* from = (global<const T>)copy.from + token * copy.token + head * copy.head + first;
        kittens::raw_eight<T> values = T();
        if (copy.aligned && count >= thread_features) {
            values = *(global<const vector>)from;
        } else {
#pragma unroll
            for (uint32_t i = 0; i < thread_features; ++i)
                if (i < count) values[i] = from[i];
        }
        // After the loads of what is stored there, so that all are in flight at once.
        const int32_t slot = slot_of(arguments.slots, token);
        if (slot < 0) return;
        store_in_cache<T>(arguments.slots, copy.to, slot, head, first, 1, count, values);
    }
};

// Over the 1 << shift lanes that share a scale: 4 to 64.
KITTENS_DEVICE float magnitude_of_group(float value, uint32_t shift) {
    value = kittens::combine_group(value, 1u << shift, kittens::larger_or_nan);
    if (shift >= 5) value = kittens::larger_or_nan(value, kittens::exchange_16(value));
    if (shift >= 6) value = kittens::larger_or_nan(value, kittens::exchange_32(value));
    return value;
}

inline constexpr float largest_e4m3fn = 448;
KITTENS_DEVICE float largest_scaled(CacheCode code) {
    return code == CacheCode::e4m3fn ? largest_e4m3fn : largest_of(code);
}
// Also converts to e4m3fn where the target has other 8-bit floats, which only rows with their own scales may use.
KITTENS_DEVICE kittens::vec<uint8_t, 8> scaled_codes_of(kittens::eight scaled, CacheCode code) {
    if (kittens::target.ocp_float8 || code != CacheCode::e4m3fn) return codes_of(scaled, code);
    // Half of the largest e4m3fn is not the largest fnuz, whose bits would be e4m3fn's NaN.
#pragma unroll
    for (int i = 0; i < 8; ++i) scaled[i] = kittens::clamped(scaled[i], largest_e4m3fn) * 0.5f;
    const auto halves = __builtin_bit_cast(kittens::vec<uint32_t, 2>, codes_of(scaled, CacheCode::fp8));
    return __builtin_bit_cast(
        kittens::vec<uint8_t, 8>,
        kittens::vec<uint32_t, 2>{kittens::e4m3fn_of_fnuz(halves[0]), kittens::e4m3fn_of_fnuz(halves[1])});
}

// Like CopyKernel, with the lanes of a head adjacent, and each head in one wave.
template <ElementConfig config>
struct ScaledKernel {
    using T = typename element_of<config.element>::value;
    typedef kittens::raw_eight<T> vector __attribute__((aligned(4)));
    template <class V>
    using global = __attribute__((address_space(1))) V*;
    static constexpr int threads = cache::threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const ScaledArguments& arguments) {
        const ScaledPart& part = arguments.parts[kittens::workgroup_id_y()];
        const uint32_t thread = kittens::workgroup_id_x() * threads + kittens::thread_id();
        const uint32_t row = thread >> part.lane_shift, token = part.head_count.quotient(row),
                       head = row - token * part.head_count.value;
        if (part.heads == 0 || token >= arguments.tokens) return;
        const uint32_t number = thread & ((1u << part.lane_shift) - 1), first = number * thread_features;
        const uint32_t count = first < part.features ? part.features - first : 0;
        auto* from = (global<const T>)part.from + token * part.token + head * part.head + first;
        kittens::raw_eight<T> raw = T();
        if (part.aligned && count >= thread_features) {
            raw = *(global<const vector>)from;
        } else {
#pragma unroll
            for (uint32_t i = 0; i < thread_features; ++i)
                if (i < count) raw[i] = from[i];
        }
        const int32_t slot = slot_of(arguments.slots, token);
        if (slot < 0) return;
        const kittens::eight values = kittens::widened(raw);
        const float magnitude = magnitude_of_group(quantize::largest_raw_magnitude<T>(raw), part.group_shift);
        const float bounded = kittens::larger_or_nan(magnitude, arguments.floor);
        float scale = bounded == 0 ? arguments.zero_scale : bounded / largest_scaled(arguments.slots.code);
        if (arguments.powers_of_two && scale == scale) {
            const uint32_t bits = __builtin_bit_cast(uint32_t, scale), mantissa = bits & 0x7fffff;
            scale = __builtin_bit_cast(float, bits - mantissa + (mantissa ? 0x800000 : 0));
        }
        CachedFeatures<uint8_t>(arguments.slots, part.to, slot, head, first, 1, count)
            .store(scaled_codes_of(values * (1 / scale), arguments.slots.code));
        if (count == 0 || (number & ((1u << part.group_shift) - 1))) return;
        const uint32_t block = slot / arguments.slots.block_size,
                       place = slot - block * arguments.slots.block_size;
        ((global<float>)
             part.scales)[block * part.scale_block + place * part.scale_slot + head * part.scale_head +
                          (number >> part.group_shift) * part.scale_group] = scale;
    }
};

}  // namespace hipkittens::cache
