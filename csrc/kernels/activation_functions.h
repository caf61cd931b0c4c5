// kernels/activation_functions.h: the value of an activation and its derivative.
// SPDX-License-Identifier: MIT
#pragma once
#include "../tiles/transcendental.h"
#include "activation_kind.h"

namespace hipkittens::activation {

struct Activated {
    float value, slope;
};

// For 16-bit results: kittens::standard_normal with one polynomial for all x instead of three. The relative error of the tail,
// e^(-x^2 / 2) t P(t) with t = 1 / (1 + 0.31 |x|), is at most 5e-6; P is a minimax fit to erfcx(x / sqrt 2) / 2 over 0 .. 14.
KITTENS_DEVICE kittens::Normal standard_normal_for_16_bits(float x) {
    constexpr float coefficients[] = {-0.07392768f, 0.18044618f, 0.01574928f,
                                      0.13342739f,  0.12044188f, 0.12386064f};
    constexpr float density_at_zero = 0x1.988454p-2f;
    const float power = kittens::exponential<false>(-0.5f * x * x);
    const float t =  // in (0, 1]
        kittens::hardware_reciprocal(__builtin_fmaf(0.31f, kittens::absolute_value(x), 1.0f));
    const float beyond = power * t * kittens::polynomial(coefficients, t);
    return {x < 0 ? beyond : 1.0f - beyond, power * density_at_zero};
}
template <bool accurate>
KITTENS_DEVICE kittens::Normal standard_normal(float x) {
    if constexpr (accurate) return kittens::standard_normal<true>(x);
    return standard_normal_for_16_bits(x);
}

// silu and gelu_tanh are x sigmoid(z(x)): 1 + tanh(u) = 2 sigmoid(2 u), without the cancellation of the sum.
// accurate: to the last bits of a float, which a 16-bit result does not show.
template <Activation activation, bool accurate>
KITTENS_DEVICE Activated activated(float x, float alpha) {
    if constexpr (activation == Activation::relu) {
        return {x <= 0 ? 0.0f : x, x > 0 ? 1.0f : 0.0f};  // NaN passes through
    } else if constexpr (activation == Activation::tanh) {
        const kittens::Tangent tangent = kittens::hyperbolic_tangent(x);
        return {tangent.value, tangent.slope};
    } else if constexpr (activation == Activation::gelu) {
        const kittens::Normal normal = standard_normal<accurate>(x);
        return {x * normal.below, __builtin_fmaf(x, normal.density, normal.below)};
    } else {
        float z = alpha * x, slope_of_z = alpha;
        if constexpr (activation == Activation::gelu_tanh) {
            constexpr float linear = 0x1.988454p+0f;  // sqrt(8 / pi)
            constexpr float cubic = 0x1.2444f2p-4f;   // 0.044715 sqrt(8 / pi)
            z = x * __builtin_fmaf(cubic * x, x, linear);
            slope_of_z = __builtin_fmaf(3.0f * cubic * x, x, linear);
        }
        const kittens::Sigmoid s = kittens::sigmoid<accurate>(z);
        return {x * s.value, s.value * __builtin_fmaf(x * s.rest, slope_of_z, 1.0f)};
    }
}

// For a gate and its partner, both clamped; a clamped one has gradient zero.
struct Gated {
    float value, dgate, dother;
};
template <Activation activation, bool accurate>
KITTENS_DEVICE Gated gated(float gate, float other, float alpha, float limit) {
    // Comparisons, so that NaN passes through.
    const bool gate_clamped = gate > limit, other_clamped = kittens::absolute_value(other) > limit;
    const Activated a = activated<activation, accurate>(gate_clamped ? limit : gate, alpha);
    float factor = other_clamped ? __builtin_copysignf(limit, other) : other;
    if constexpr (activation == Activation::swiglu) factor += 1;
    return {a.value * factor, gate_clamped ? 0.0f : a.slope * factor, other_clamped ? 0.0f : a.value};
}

template <Activation activation>
struct Constant {
    static constexpr Activation value = activation;
};
// Calls visit with the activation, which is the same for all threads, as a compile-time constant.
template <class Visit>
KITTENS_DEVICE void with_activation(Activation activation, const Visit& visit) {
    switch (activation) {
        case Activation::silu:
            return visit(Constant<Activation::silu>());
        case Activation::gelu_tanh:
            return visit(Constant<Activation::gelu_tanh>());
        case Activation::gelu:
            return visit(Constant<Activation::gelu>());
        case Activation::relu:
            return visit(Constant<Activation::relu>());
        case Activation::tanh:
            return visit(Constant<Activation::tanh>());
        case Activation::swiglu:
            return visit(Constant<Activation::swiglu>());
    }
}

}  // namespace hipkittens::activation
