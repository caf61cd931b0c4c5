// kernels/delta_rule/token_decays.h: what a token's decays are, and how a state gets them.
// SPDX-License-Identifier: MIT
#pragma once
#include "state_slice.h"

namespace hipkittens::delta_rule {

// ln(1 + e^x), and x where that is it to a float's last bit (PyTorch's softplus).
KITTENS_DEVICE float softplus(float x) {
    if (x > 20.0f) return x;
    const float power = kittens::exponential<true>(x), sum = 1.0f + power;
    // The logarithm of the rounded sum, corrected by what the rounding changed.
    return sum == 1.0f ? power : kittens::natural_logarithm(sum) * (power / (sum - 1.0f));
}

// ln of a channel's decay, of x with its bias; rate: -exp(a_log).
KITTENS_DEVICE float gated_logarithm(float x, float rate, float lower_bound) {
    return lower_bound < 0 ? lower_bound * kittens::sigmoid<true>(-rate * x).value : rate * softplus(x);
}

// One of a state, which finished sums and the state itself are multiplied by.
template <StepConfig config>
struct HeadDecay {
    static constexpr int shared_floats = 0;
    float rate, bias;  // of the gate
    float logarithm;

    KITTENS_DEVICE HeadDecay(const StepArguments& arguments, uint32_t head)
        : rate(arguments.a_log ? -kittens::exponential<true>(((global<const float>)arguments.a_log)[head])
                               : 0.0f),
          bias(arguments.a_log ? ((global<const float>)arguments.dt_bias)[head] : 0.0f) {}
    template <class Tokens>
    KITTENS_DEVICE void load(const StepArguments& arguments, const Tokens& g) {
        logarithm = g.element(0, arguments.wide_g);
    }
    KITTENS_DEVICE void pass_gate(const StepArguments&) { logarithm = rate * softplus(logarithm + bias); }
    KITTENS_DEVICE void share(const StepArguments&, kittens::shared_byte*) const {}
    KITTENS_DEVICE float of_state() const { return decay(logarithm); }
    KITTENS_DEVICE static void apply(StateSlice<config>&, int, kittens::shared_byte*) {}
};

// One of each key, which a lane calculates of its elements of k and shares with the wave through LDS.
template <StepConfig config>
struct ChannelDecays {
    static constexpr int shared_floats = config.key, count = config.key / 64;
    float rate, biases[count];
    float logarithms[count];

    KITTENS_DEVICE ChannelDecays(const StepArguments& arguments, uint32_t head)
        : rate(arguments.a_log ? -kittens::exponential<true>(((global<const float>)arguments.a_log)[head])
                               : 0.0f) {
        each([&](int n, uint32_t column) {
            biases[n] = arguments.a_log && column < arguments.key
                            ? ((global<const float>)arguments.dt_bias)[head * arguments.key + column]
                            : 0.0f;
        });
    }
    template <class Visit>
    KITTENS_DEVICE static void each(const Visit& visit) {
#pragma unroll
        for (int n = 0; n < count; ++n) visit(n, kittens::lane_id() + 64 * n);
    }
    template <class Tokens>
    KITTENS_DEVICE void load(const StepArguments& arguments, const Tokens& g) {
        each([&](int n, uint32_t column) {
            logarithms[n] = column < arguments.key ? g.element(column, arguments.wide_g) : 0.0f;
        });
    }
    KITTENS_DEVICE void pass_gate(const StepArguments& arguments) {
        each([&](int n, uint32_t) {
            logarithms[n] = gated_logarithm(logarithms[n] + biases[n], rate, arguments.lower_bound);
        });
    }
    // Behind the last key the state has zeros, and any number does.
    KITTENS_DEVICE void share(const StepArguments& arguments, kittens::shared_byte* factors) const {
        each([&](int n, uint32_t column) {
            kittens::lds_write(column < arguments.key ? decay(logarithms[n]) : 1.0f, factors + column * 4);
        });
    }
    KITTENS_DEVICE static float of_state() { return 1.0f; }
    // To keys i .. i + 3 of the lane.
    KITTENS_DEVICE static void apply(StateSlice<config>& slice, int i, kittens::shared_byte* factors) {
        const four of_keys = kittens::lds_read<four>(factors + slice.key(i) * 4);
#pragma unroll
        for (int e = 0; e < 4; ++e)
#pragma unroll
            for (int j = 0; j < 4; ++j) slice.at[i + e][j] *= of_keys[e];
    }
};

}  // namespace hipkittens::delta_rule
