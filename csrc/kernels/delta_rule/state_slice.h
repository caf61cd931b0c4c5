// kernels/delta_rule/state_slice.h: the columns of a state that a wave has in registers while tokens pass.
// SPDX-License-Identifier: MIT
#pragma once
#include "chunk.h"

namespace hipkittens::delta_rule {

// The 8 x 8 lanes of a wave hold `keys` x 4 elements each of a slice of a state.
template <StepConfig config>
struct StateSlice {
    using S = typename element_of<config.state>::value;
    static constexpr int keys = config.key / 8;

    int outer, inner;  // of the lane: along the dimension with gaps, and along that of neighbours
    uint32_t first_value;
    float at[keys][4];

    KITTENS_DEVICE explicit StateSlice(uint32_t slice)
        : outer(kittens::lane_id() / 8), inner(kittens::lane_id() % 8), first_value(slice * step_values) {}
    KITTENS_DEVICE uint32_t key(int i) const {
        return config.value_by_value ? 32 * (i / 4) + 4 * inner + i % 4 : outer * keys + i;
    }
    KITTENS_DEVICE uint32_t value(int j) const {
        return first_value + (config.value_by_value ? outer + 8 * j : 4 * inner + j);
    }
    // One of the lanes that hold the same values.
    KITTENS_DEVICE bool is_first_of_values() const { return (config.value_by_value ? inner : outer) == 0; }
    // Sums over all keys.
    KITTENS_DEVICE float sum_of_keys(float sum) const {
        if constexpr (config.value_by_value) {
            return kittens::combine_group(sum, 8, [](float a, float b) { return a + b; });
        } else {
            sum += kittens::rotate_in_16<8>(sum);
            sum += kittens::exchange_16(sum);
            return sum + kittens::exchange_32(sum);
        }
    }
    KITTENS_DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < keys; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) at[i][j] = 0;
    }
    // access(i, j, offset in bytes) of each four neighbours: a key's four values, or a value's run of four keys. What is behind the
    // last key or value is read as zero, and not stored.
    template <class Access>
    KITTENS_DEVICE void each_four(const StepArguments& arguments, const States& states,
                                  const Access& access) const {
        // Calculated anew for each state that is stored: otherwise all offsets stay in registers while tokens pass.
        StateSlice here = *this;
        kittens::materialize(here.outer);
        kittens::materialize(here.inner);
        const uint32_t of_key = static_cast<uint32_t>(states.key) * sizeof(S),
                       of_value = static_cast<uint32_t>(states.value) * sizeof(S);
#pragma unroll
        for (int n = 0; n < keys; ++n) {
            const int i = config.value_by_value ? n / 4 * 4 : n, j = config.value_by_value ? n % 4 : 0;
            const uint32_t k = here.key(i), v = here.value(j);
            access(i, j, k < arguments.key && v < arguments.value ? k * of_key + v * of_value : beyond);
        }
    }
    static constexpr uint32_t beyond = 0xf0000000;
    KITTENS_DEVICE static kittens::buffer memory(const States& states, uint32_t slot, uint32_t head) {
        return {(const char*)states.data +
                    (slot * states.slot + head * states.head) * static_cast<int64_t>(sizeof(S)),
                beyond};
    }
    KITTENS_DEVICE float& element(int i, int j, int e) {
        return config.value_by_value ? at[i + e][j] : at[i][e];
    }
    KITTENS_DEVICE void load(const StepArguments& arguments, uint32_t slot, uint32_t head) {
        const kittens::buffer from = memory(arguments.initial, slot, head);
        each_four(arguments, arguments.initial, [&](int i, int j, uint32_t offset) {
            const auto values = kittens::buffer_load<kittens::vec<S, 4>>(from, offset);
#pragma unroll
            for (int e = 0; e < 4; ++e) element(i, j, e) = static_cast<float>(values[e]);
        });
    }
    KITTENS_DEVICE void store(const StepArguments& arguments, uint32_t slot, uint32_t head) {
        const kittens::buffer to = memory(arguments.final, slot, head);
        each_four(arguments, arguments.final, [&](int i, int j, uint32_t offset) {
            const four values = {element(i, j, 0), element(i, j, 1), element(i, j, 2), element(i, j, 3)};
            kittens::buffer_store(__builtin_convertvector(values, kittens::vec<S, 4>), to, offset);
        });
    }
};

}  // namespace hipkittens::delta_rule
