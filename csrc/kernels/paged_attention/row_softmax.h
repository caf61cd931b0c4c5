// kernels/paged_attention/row_softmax.h: the running maximum and sum of a row of scores that four lanes share.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "../sink_weight.h"

namespace hipkittens::paged_attention {

using namespace kittens;

// Exponents are base 2 and relative to `reference`, which is the same in lanes l, l ^ 16, l ^ 32 and l ^ 48. It is raised to
// the maximum only when it lags by more than `slack`; everything accumulated before is then multiplied by one factor.
struct RowSoftmax {
    static constexpr float slack = 8.0f, none = -__builtin_inff();
    float reference = none;
    float sum = 0;  // of this lane's keys only, until `total`

    // For a row without any key: exp2(-inf - 0), not exp2(-inf + inf).
    KITTENS_DEVICE static float base_of(float reference) { return reference == none ? 0.0f : reference; }

    // Replaces base-2 scores by exponentials. `output`: the accumulators of earlier keys.
    template <int count, int outputs>
    KITTENS_DEVICE void exponentiate(vec<float, count>& scores, vec<float, 4> (&output)[outputs]) {
        float largest = scores[0];
#pragma unroll
        for (int e = 1; e < count; ++e) largest = larger(largest, scores[e]);
        if (any_lane(largest > reference + slack)) {
            largest = larger(largest, exchange_16(largest));
            raise(larger(largest, exchange_32(largest)), output);
        }
        const float base = base_of(reference);
#pragma unroll
        for (int e = 0; e < count; ++e) {
            scores[e] = exponential_base_2(scores[e] - base);
            sum += scores[e];
        }
    }
    template <int outputs>
    KITTENS_DEVICE void raise(float maximum, vec<float, 4> (&output)[outputs]) {
        if (!(maximum > reference)) return;
        const float factor = exponential_base_2(reference - maximum);
        reference = maximum;
        sum *= factor;
#pragma unroll
        for (int n = 0; n < outputs; ++n) output[n] *= factor;
    }
    // Adds the sum of the row's other keys, which another wave has processed. Returns the factor for that wave's `output`.
    template <int outputs>
    KITTENS_DEVICE float join(const RowSoftmax& other, vec<float, 4> (&output)[outputs]) {
        raise(other.reference, output);
        const float factor = exponential_base_2(other.reference - base_of(reference));
        sum = __builtin_fmaf(other.sum, factor, sum);
        return factor;
    }
    KITTENS_DEVICE float total() const {
        const float two = sum + exchange_16(sum);
        return two + exchange_32(two);
    }
    // ln of the sum of exp(score); -inf for a row that sees nothing.
    KITTENS_DEVICE float log_sum_exp(float total) const {
        constexpr float ln_2 = 0.69314718055994531f;
        return total == 0.0f ? none : (reference + logarithm_base_2(total)) * ln_2;
    }
};

}  // namespace hipkittens::paged_attention
