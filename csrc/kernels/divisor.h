// kernels/divisor.h: division by a number known to the host, as a multiplication.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

namespace hipkittens {

// For any 32-bit dividend (T. Granlund and P. L. Montgomery, Division by Invariant Integers using Multiplication, PLDI
// 1994, figure 4.1). A division by an argument takes a wave about twenty vector instructions, this one five.
struct Divisor {
    uint32_t value, multiplier, first_shift, second_shift;

    constexpr uint32_t quotient(uint32_t dividend) const {
        const uint32_t high = static_cast<uint32_t>((uint64_t{multiplier} * dividend) >> 32);
        return (high + ((dividend - high) >> first_shift)) >> second_shift;
    }
};

// value: 1 or more.
constexpr Divisor divisor_of(uint32_t value) {
    uint32_t bits = 0;  // the smallest with 2^bits >= value
    while (uint64_t{1} << bits < value) ++bits;
    const uint64_t multiplier = (((uint64_t{1} << bits) - value) << 32) / value + 1;
    return {value, static_cast<uint32_t>(multiplier), bits ? 1u : 0u, bits ? bits - 1 : 0u};
}

}  // namespace hipkittens
