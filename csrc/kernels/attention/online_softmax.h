// kernels/attention/online_softmax.h: the running maximum and sum of a row of scores that arrives tile by tile.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::attention {

// One query per lane, its keys spread over lanes l and l ^ 32. Exponents are base 2 and relative to `reference`,
// which follows the maximum only when it falls behind by more than `slack`: then, and before anything is
// exponentiated against the new reference, all that was summed so far is multiplied by one factor.
struct OnlineSoftmax {
    // 2^slack times the number of keys fits in f32, and 2^slack in f16.
    static constexpr float slack = 8.0f;

    float scale_log2;
    float reference = -__builtin_inff();
    float sum = 0;  // of this lane's keys only

    KITTENS_DEVICE explicit OnlineSoftmax(float scale_log2) : scale_log2(scale_log2) {}

    // Before the scores of a tile are exponentiated, and after the output has taken in all earlier ones.
    template <class Scores, class Output>
    KITTENS_DEVICE void follow(const Scores& scores, Output& output) {
        static_assert(Scores::height == 1 && Output::height == 1, "one query per lane");
        kittens::col_vec<Scores> largest;
        kittens::row_max(largest, scores);
        const float maximum = largest.tiles[0][0] * scale_log2;
        if (maximum > reference + slack) {
            const float factor = kittens::exponential_base_2(reference - maximum);
            reference = maximum;
            sum *= factor;
            kittens::mul(output, output, factor);
        }
    }
    // Base tiles first .. first+count-1 of the scores become powers of two.
    template <int first, int count, class Scores>
    KITTENS_DEVICE void exponentiate(Scores& scores) {
        // A query that has seen no key yet: exp2(-inf - 0), not exp2(-inf + inf).
        const float base = reference == -__builtin_inff() ? 0.0f : reference;
#pragma unroll
        for (int j = first; j < first + count; ++j)
#pragma unroll
            for (int e = 0; e < Scores::per_lane; ++e) {
                const float power =
                    kittens::exponential_base_2(__builtin_fmaf(scores.tiles[0][j][e], scale_log2, -base));
                scores.tiles[0][j][e] = power;
                sum += power;
            }
    }

    // Over all keys, in both lanes.
    KITTENS_DEVICE float total() const {
        return kittens::reduce_across_groups<kittens::operation::sum, 32>(sum);
    }
    // ln of the sum of exp(scale x score); -inf for a query that sees nothing.
    KITTENS_DEVICE float log_sum_exp(float total) const {
        constexpr float ln_2 = 0.69314718055994531f;
        return total == 0.0f ? -__builtin_inff() : (reference + kittens::logarithm_base_2(total)) * ln_2;
    }
};

}  // namespace hipkittens::attention
