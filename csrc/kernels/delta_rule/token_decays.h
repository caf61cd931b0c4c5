// kernels/delta_rule/token_decays.h: a token's decays, and how they are applied to a state.
// SPDX-License-Identifier: MIT
#pragma once
#include "state_slice.h"

namespace hipkittens::delta_rule {

// ln(1 + e^x), and x where it equals that to the last bit of a float (PyTorch's softplus).
KITTENS_DEVICE float softplus(float x) {
    if (x > 20.0f) return x;
    const float power = kittens::exponential<true>(x), sum = 1.0f + power;
    // The logarithm of the rounded sum, corrected by what the rounding changed.
    return sum == 1.0f ? power : kittens::natural_logarithm(sum) * (power / (sum - 1.0f));
}

// ln of a channel's decay, for x including its bias; rate: -exp(a_log).
KITTENS_DEVICE float gated_logarithm(float x, float rate, float lower_bound) {
    return lower_bound < 0 ? lower_bound * kittens::sigmoid<true>(-rate * x).value : rate * softplus(x);
}

// One decay per state, by which finished sums and the state itself are multiplied.
template <StepConfig config>
struct HeadDecay {
    static constexpr int shared_floats = 0;
    float log_rate = 0, bias = 0;  // of the gate

    KITTENS_DEVICE void load_gate(const StepArguments& arguments, uint32_t head, uint32_t) {
        if (!arguments.a_log) return;
        log_rate = ((global<const float>)arguments.a_log)[head];
        bias = ((global<const float>)arguments.dt_bias)[head];
    }
    // The element of g for this lane.
    KITTENS_DEVICE static uint32_t element(uint32_t) { return 0; }
    KITTENS_DEVICE float pass_gate(const StepArguments&, float x) const {
        return -kittens::exponential<true>(log_rate) * softplus(x + bias);
    }
    KITTENS_DEVICE static void share(float, kittens::shared_byte*) {}
    KITTENS_DEVICE static float of_state(float logarithm) { return decay(logarithm); }
    KITTENS_DEVICE static void apply(StateSlice<config>&, kittens::shared_byte*) {}
};

// One decay per key, computed by two lanes and shared with the wave through LDS.
template <StepConfig config>
struct ChannelDecays {
    static constexpr int shared_floats = step_keys;
    float log_rate = 0, bias = 0;

    KITTENS_DEVICE void load_gate(const StepArguments& arguments, uint32_t head, uint32_t key) {
        if (!arguments.a_log) return;
        log_rate = ((global<const float>)arguments.a_log)[head];
        bias = ((global<const float>)arguments.dt_bias)[head * arguments.key + key];
    }
    KITTENS_DEVICE static uint32_t element(uint32_t key) { return key; }
    KITTENS_DEVICE float pass_gate(const StepArguments& arguments, float x) const {
        return gated_logarithm(x + bias, -kittens::exponential<true>(log_rate), arguments.lower_bound);
    }
    KITTENS_DEVICE static void share(float logarithm, kittens::shared_byte* factors) {
        kittens::lds_write(decay(logarithm), factors + kittens::lane_id() % step_keys * 4);
    }
    KITTENS_DEVICE static float of_state(float) { return 1.0f; }
    KITTENS_DEVICE static void apply(StateSlice<config>& slice, kittens::shared_byte* factors) {
        const four of_keys = kittens::lds_read<four>(factors + slice.keys() * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) slice.at[i][j] *= of_keys[i];
    }
};

}  // namespace hipkittens::delta_rule
