// kernels/paged_attention/key_scales.h: scales per key and per value of a cache.
// SPDX-License-Identifier: MIT
#pragma once
#include "key_tile.h"
#include "row_softmax.h"

namespace hipkittens::paged_attention {

// The scales of a tile, loaded with its keys: of every 16 lanes, which share rows of 8 keys, lane n has the scale of key n and
// lane 8 + n that of its value, in the order in which KeyPages has their pages.
struct KeyScales {
    global<const float> data;
    int64_t page_step, slot_step;
    float loaded, current;
    // For 16-bit floats with few exponents: products with values use weights times scales, divided by the largest scale so far.
    float largest = 0;

    KITTENS_DEVICE KeyScales(const PagedArguments& arguments, uint32_t key_head) {
        const bool of_value = lane_id() % 16 >= lane_keys;
        const CacheScales &keys = arguments.key_scales, &values = arguments.value_scales;
        data = of_value ? (global<const float>)values.data + key_head * values.head_step
                        : (global<const float>)keys.data + key_head * keys.head_step;
        page_step = of_value ? values.page_step : keys.page_step;
        slot_step = of_value ? values.slot_step : keys.slot_step;
    }
    // Issued before the loads of keys, so that the scales have arrived when the keys have.
    KITTENS_DEVICE void load(const KeyPages& pages, const PagedArguments& arguments, int tile,
                             const KeyBounds& bounds) {
        const uint32_t slot = KeyPages::slot_of(arguments, KeyPages::key_of_lane(tile, bounds));
        loaded = data[pages.page * page_step + slot * slot_step];
    }
    KITTENS_DEVICE void take() { current = loaded; }

    // For the lane's 8 keys, or for their values.
    template <int first>
    KITTENS_DEVICE vec<float, 8> spread(float value) const {
        return {broadcast_in_16<first>(value),     broadcast_in_16<first + 1>(value),
                broadcast_in_16<first + 2>(value), broadcast_in_16<first + 3>(value),
                broadcast_in_16<first + 4>(value), broadcast_in_16<first + 5>(value),
                broadcast_in_16<first + 6>(value), broadcast_in_16<first + 7>(value)};
    }
    KITTENS_DEVICE vec<float, 8> of_keys() const { return spread<0>(current); }
    // Relative to the largest scale, if T has few exponents: `output` is rescaled when the largest one changes.
    template <class T, int row_tiles, int outputs>
    KITTENS_DEVICE vec<float, 8> of_values(vec<float, 4> (&output)[row_tiles][outputs]) {
        if constexpr (same_type<T, bf16>) {
            return spread<lane_keys>(current);
        } else {
            const bool of_value = lane_id() % 16 >= lane_keys;
            const float magnitude = of_value ? __builtin_fabsf(current) : 0.0f;
            if (any_lane(magnitude > largest)) {
                const float all =
                    larger(largest, combine_lanes(magnitude, [](float a, float b) { return larger(a, b); }));
                const float factor = largest / all;
#pragma unroll
                for (int r = 0; r < row_tiles; ++r)
#pragma unroll
                    for (int n = 0; n < outputs; ++n) output[r][n] *= factor;
                largest = all;
            }
            return spread<lane_keys>(current * (largest > 0 ? 1.0f / largest : 0.0f));
        }
    }
    // The factor to apply to `output` at the end.
    template <class T>
    KITTENS_DEVICE float unit() const {
        return same_type<T, bf16> ? 1.0f : largest;
    }
};

}  // namespace hipkittens::paged_attention
