// kernels/delta_rule/state_slice.h: the part of a state that a wave keeps in registers while it iterates over tokens.
// SPDX-License-Identifier: MIT
#pragma once
#include "chunk.h"

namespace hipkittens::delta_rule {

// Each of the 8 x 8 lanes of a wave holds 4 x 4 elements of `step_keys` rows and `step_values` columns of a state.
template <StepConfig config>
struct StateSlice {
    using S = typename element_of<config.state>::value;

    int outer, inner;  // of the lane: along the strided dimension, and along the contiguous one
    uint32_t first_key, first_value;
    float at[4][4];

    KITTENS_DEVICE StateSlice(uint32_t rows, uint32_t columns)
        : outer(kittens::lane_id() / 8),
          inner(kittens::lane_id() % 8),
          first_key(rows * step_keys),
          first_value(columns * step_values) {}
    // The first of the lane's four adjacent keys, among those of the wave.
    KITTENS_DEVICE uint32_t keys() const { return 4 * (config.value_by_value ? inner : outer); }
    KITTENS_DEVICE uint32_t value(int j) const {
        return first_value + (config.value_by_value ? outer + 8 * j : 4 * inner + j);
    }
    // The lanes divide finished sums among them: for each value, one lane has the sum with the key, and one that with the query.
    KITTENS_DEVICE bool has_query() const { return config.value_by_value ? inner >= 4 : outer >= 4; }
    KITTENS_DEVICE uint32_t shared_value() const {
        return first_value + (config.value_by_value ? outer + 8 * (inner % 4) : 4 * inner + outer % 4);
    }
    // The position of a float per shared value, such that those of value(0) .. value(3) are adjacent, from `values()` on.
    KITTENS_DEVICE uint32_t shared_place() const {
        return values() + (config.value_by_value ? inner : outer) % 4;
    }
    KITTENS_DEVICE uint32_t values() const { return 4 * (config.value_by_value ? outer : inner); }

    // From each lane's sums over keys, with the key and with the query: the sum over the wave's keys for this lane's shared value.
    // Lanes exchange the halves that they do not keep.
    KITTENS_DEVICE float shared_sum(const float (&of_key)[4], const float (&of_query)[4]) const {
        const int lane = config.value_by_value ? inner : outer;
        const auto half = [&](int bit, float low, float high, const auto& exchange) {
            const bool is_high = lane & bit;
            return (is_high ? high : low) + exchange(is_high ? low : high);
        };
        float four_sums[4], two_sums[2];
        if constexpr (config.value_by_value) {
#pragma unroll
            for (int j = 0; j < 4; ++j)
                four_sums[j] = half(4, of_key[j], of_query[j], kittens::mirror_in_8<float>);
#pragma unroll
            for (int j = 0; j < 2; ++j)
                two_sums[j] =
                    half(2, four_sums[j], four_sums[j + 2], kittens::permute_in_4<2, 3, 0, 1, float>);
            return half(1, two_sums[0], two_sums[1], kittens::permute_in_4<1, 0, 3, 2, float>);
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j)
                four_sums[j] = half(4, of_key[j], of_query[j], kittens::exchange_32<float>);
#pragma unroll
            for (int j = 0; j < 2; ++j)
                two_sums[j] = half(2, four_sums[j], four_sums[j + 2], kittens::exchange_16<float>);
            return half(1, two_sums[0], two_sums[1], kittens::rotate_in_16<8, float>);
        }
    }
    KITTENS_DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) at[i][j] = 0;
    }
    // access(n, offset in bytes) for each group of four adjacent elements: a key's four values, or a value's four keys. Elements past
    // the last key or value are read as zero, and not stored.
    template <class Access>
    KITTENS_DEVICE void each_four(const StepArguments& arguments, const States& states,
                                  const Access& access) const {
        const uint32_t of_key = static_cast<uint32_t>(states.key) * sizeof(S),
                       of_value = static_cast<uint32_t>(states.value) * sizeof(S);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const uint32_t k = first_key + keys() + (config.value_by_value ? 0 : n),
                           v = value(config.value_by_value ? n : 0);
            access(n, k < arguments.key && v < arguments.value ? k * of_key + v * of_value : beyond);
        }
    }
    static constexpr uint32_t beyond = 0xf0000000;
    KITTENS_DEVICE static kittens::buffer memory(const States& states, uint32_t slot, uint32_t head) {
        return {(const char*)states.data +
                    (slot * states.slot + head * states.head) * static_cast<int64_t>(sizeof(S)),
                beyond};
    }
    KITTENS_DEVICE float& element(int n, int e) { return config.value_by_value ? at[e][n] : at[n][e]; }
    KITTENS_DEVICE void load(const StepArguments& arguments, uint32_t slot, uint32_t head) {
        const kittens::buffer from = memory(arguments.initial, slot, head);
        each_four(arguments, arguments.initial, [&](int n, uint32_t offset) {
            const auto values = kittens::buffer_load<kittens::vec<S, 4>>(from, offset);
#pragma unroll
            for (int e = 0; e < 4; ++e) element(n, e) = static_cast<float>(values[e]);
        });
    }
    KITTENS_DEVICE void store(const StepArguments& arguments, uint32_t slot, uint32_t head) {
        const kittens::buffer to = memory(arguments.final, slot, head);
        each_four(arguments, arguments.final, [&](int n, uint32_t offset) {
            const four values = {element(n, 0), element(n, 1), element(n, 2), element(n, 3)};
            kittens::buffer_store(__builtin_convertvector(values, kittens::vec<S, 4>), to, offset);
        });
    }
};

}  // namespace hipkittens::delta_rule
