// kernels/attention/online_softmax.h: the running maximum and sum of a row of scores that arrive tile by tile.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::attention {

using namespace kittens;

// One query per lane, with its keys spread over lanes l and l ^ 32. Exponents are base 2 and relative to
// `reference`, which is raised to the maximum only when it lags by more than `slack`. In that case everything
// accumulated so far is multiplied by one factor before anything is exponentiated relative to the new reference.
struct OnlineSoftmax {
    // 2^slack times the number of keys fits in f32, and 2^slack in f16.
    static constexpr float slack = 8.0f;

    float scale_log2;
    float reference = -__builtin_inff();
    float sum = 0;  // of this lane's keys only

    KITTENS_DEVICE explicit OnlineSoftmax(float scale_log2) : scale_log2(scale_log2) {}

    // Call before the scores of a tile are exponentiated, and after the PV products of all earlier tiles.
    template <class Scores, class Output>
    KITTENS_DEVICE void raise_reference(const Scores& scores, Output& output, float allowed = slack) {
        static_assert(Scores::height == 1 && Output::height == 1, "one query per lane");
        col_vec<Scores> largest;
        row_max(largest, scores);
        const float maximum = largest.tiles[0][0] * scale_log2;
        if (maximum > reference + allowed) {
            const float factor = exponential_base_2(reference - maximum);
            reference = maximum;
            sum *= factor;
            mul(output, output, factor);
        }
    }
    // Replaces scores by their exponentials.
    template <class Scores>
    KITTENS_DEVICE void exponentiate(Scores& scores) {
        // A query that has not seen a key yet: exp2(-inf - 0), not exp2(-inf + inf).
        const float base = reference == -__builtin_inff() ? 0.0f : reference;
        for_each_register<Scores>([&](int i, int j, int e) {
            const float exponential =
                exponential_base_2(__builtin_fmaf(scores.tiles[i][j][e], scale_log2, -base));
            scores.tiles[i][j][e] = exponential;
            sum += exponential;
        });
    }

    // Without computing a maximum: a chunk of scores is exponentiated relative to the current reference, pair by pair. Only if
    // the sum of exponentials exceeds `limit`, which bounds every one of them, is the reference raised and the chunk repeated.
    // The reference is a maximum of keys seen before, so no exponential is smaller than it would be relative to the final one.
    // Before any key it is -inf, and the sum is never within the limit.
    template <class T>
    static constexpr float limit = same_type<T, half> ? 0x1p15f : 0x1p60f;

    // The exponent for register `number` of the scores.
    template <int number, class Scores>
    KITTENS_DEVICE float exponent(const Scores& scores) const {
        static_assert(Scores::height == 1 && Scores::width == 1);
        return __builtin_fmaf(scores.tiles[0][0][number], scale_log2, -reference);
    }
    // Call after all pairs of a chunk, and after the PV products of all earlier chunks. `chunk_sum` is the sum of the
    // current exponentials; redo(pair, exponentials) receives those relative to a new reference.
    template <class T, class Scores, class Output, class Redo>
    KITTENS_DEVICE void finish_chunk(float chunk_sum, const Scores& scores, Output& output,
                                     const Redo& redo) {
        if (any_lane(!(chunk_sum <= limit<T>))) [[unlikely]] {
            raise_reference(scores, output, 0);
            // A query that has not seen a key yet: exp2(-inf - 0), not exp2(-inf + inf).
            const float base = reference == -__builtin_inff() ? 0.0f : reference;
            chunk_sum = 0;
            for_each_index<Scores::per_lane / 2>([&](auto pair) KITTENS_INLINE {
                vec<float, 2> exponentials;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    exponentials[e] = exponential_base_2(
                        __builtin_fmaf(scores.tiles[0][0][2 * pair.value + e], scale_log2, -base));
                    chunk_sum += exponentials[e];
                }
                redo(pair, exponentials);
            });
        }
        sum += chunk_sum;
    }

    // Over all keys, in both lanes.
    KITTENS_DEVICE float total() const { return reduce_across_groups<operation::sum, 32>(sum); }
    // ln of the sum of exp(scale x score); -inf for a query that sees nothing.
    KITTENS_DEVICE float log_sum_exp(float total) const {
        constexpr float ln_2 = 0.69314718055994531f;
        return total == 0.0f ? -__builtin_inff() : (reference + logarithm_base_2(total)) * ln_2;
    }
};

}  // namespace hipkittens::attention
