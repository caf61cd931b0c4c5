// kernels/attention/code_softmax.h: online softmax of scores that arrive tile by tile, with weights quantized to 8-bit floats.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/float8.h"
#include "../../tiles/tiles.h"

namespace hipkittens::attention {

using namespace kittens;

// One query per lane, with its keys spread over lanes l and l ^ 32. Weights are 2^(score - reference). The reference stays below the
// largest score by between `least` and `most`, so that the largest weight of a row is close to the largest 8-bit value and small
// weights stay above the smallest one. The reference cancels at the end.
struct CodeSoftmax {
    // 2^most is the largest representable power of two. The reference is raised when the largest weight would exceed it, and then far
    // enough that not every new maximum raises it again: this costs small weights 2 of 17 (gfx942) or 16 bits below the largest.
    static constexpr float most = target.number == 942 ? 7.0f : 8.0f, least = most - 2;
    static_assert(1 << static_cast<int>(most) <= largest_fp8 && 2 << static_cast<int>(most) > largest_fp8);

    float reference = -__builtin_inff();
    float sum = 0;  // of this lane's keys only

    // Call before the products of a tile become weights, and after the PV products of all earlier tiles. Scores are `scale` times products.
    template <class Products, class Output>
    KITTENS_DEVICE void raise_reference(const Products& products, float scale, Output& output) {
        float largest = products[0];
#pragma unroll
        for (int e = 1; e < static_cast<int>(sizeof(Products) / sizeof(float)); ++e)
            largest = larger(largest, products[e]);
        const float maximum = reduce_across_groups<operation::maximum, 32>(largest) * scale;
        if (maximum > reference + most) {
            const float raised = maximum - least, factor = exponential_base_2(reference - raised);
            reference = raised;
            sum *= factor;
            mul(output, output, factor);
        }
    }
    // The weights of 32 products as 8-bit floats, in the same order.
    KITTENS_DEVICE vec<int, 8> weights(vec<float, 32>& products, float scale) {
        // A query that has not seen a key yet: 2^(-inf - 0), not 2^(-inf + inf).
        const float base = reference == -__builtin_inff() ? 0.0f : reference;
        vec<int, 8> codes;
        vec<float, 2> sums = {0.0f, 0.0f};  // one instruction adds to both
#pragma unroll
        for (int four = 0; four < 8; ++four) {
            vec<float, 4> run;
#pragma unroll
            for (int e = 0; e < 4; ++e)
                run[e] = exponential_base_2(__builtin_fmaf(products[4 * four + e], scale, -base));
            sums += run.lo + run.hi;
            codes[four] = static_cast<int>(to_fp8(run));
        }
        sum += sums[0] + sums[1];
        return codes;
    }

    // Over all keys, in both lanes.
    KITTENS_DEVICE float total() const { return reduce_across_groups<operation::sum, 32>(sum); }
    // ln of the sum of 2^score; -inf for a query that sees nothing.
    KITTENS_DEVICE float log_sum_exp(float total) const {
        constexpr float ln_2 = 0.69314718055994531f;
        return total == 0.0f ? -__builtin_inff() : (reference + logarithm_base_2(total)) * ln_2;
    }
};

}  // namespace hipkittens::attention
