// kernels/attention/online_softmax.h: the running maximum and sum of a row of scores that comes tile by tile.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::attention {

using namespace kittens;

// One query per lane, its keys spread over lanes l and l ^ 32. Exponents are base 2 and relative to `reference`,
// which is raised to the maximum only when it falls behind by more than `slack`: then, and before anything is
// exponentiated against the new reference, all that was summed so far is multiplied by one factor.
struct OnlineSoftmax {
    // 2^slack times the number of keys fits in f32, and 2^slack in f16.
    static constexpr float slack = 8.0f;

    float scale_log2;
    float reference = -__builtin_inff();
    float sum = 0;  // of this lane's keys only

    KITTENS_DEVICE explicit OnlineSoftmax(float scale_log2) : scale_log2(scale_log2) {}

    // Before the scores of a tile are exponentiated, and after the PV products of all earlier ones.
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
    // Scores become exponentials.
    template <class Scores>
    KITTENS_DEVICE void exponentiate(Scores& scores) {
        // A query that has seen no key yet: exp2(-inf - 0), not exp2(-inf + inf).
        const float base = reference == -__builtin_inff() ? 0.0f : reference;
        for_each_register<Scores>([&](int i, int j, int e) {
            const float exponential =
                exponential_base_2(__builtin_fmaf(scores.tiles[i][j][e], scale_log2, -base));
            scores.tiles[i][j][e] = exponential;
            sum += exponential;
        });
    }

    // Without a maximum: a chunk of scores is exponentiated against the reference as it is, pair by pair, and only a sum
    // of exponentials beyond `limit`, which bounds every one of them, raises the reference and repeats the chunk. The
    // reference is a maximum of keys seen before, so that no exponential is smaller than against the final one; without any it is
    // -inf, and the sum never within the limit.
    template <class T>
    static constexpr float limit = same_type<T, half> ? 0x1p15f : 0x1p60f;

    // Of register `number` of the scores.
    template <int number, class Scores>
    KITTENS_DEVICE float exponent(const Scores& scores) const {
        static_assert(Scores::height == 1 && Scores::width == 1);
        return __builtin_fmaf(scores.tiles[0][0][number], scale_log2, -reference);
    }
    // After all pairs of a chunk, and after the PV products of all earlier chunks. `chunk_sum` is of the exponentials as
    // they are; redo(pair, exponentials) receives those against a new reference.
    template <class T, class Scores, class Output, class Redo>
    KITTENS_DEVICE void finish_chunk(float chunk_sum, const Scores& scores, Output& output,
                                     const Redo& redo) {
        if (any_lane(!(chunk_sum <= limit<T>))) [[unlikely]] {
            raise_reference(scores, output, 0);
            // A query that has seen no key yet: exp2(-inf - 0), not exp2(-inf + inf).
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
