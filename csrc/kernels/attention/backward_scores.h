// kernels/attention/backward_scores.h: which queries see a key, P from a score, and dS from P and dP.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "backward_arguments.h"
#include "dropout.h"
#include "forward_tiles.h"
#include "mask.h"
#include "pointwise_weights.h"
#include "score_terms.h"

namespace hipkittens::attention {

using namespace kittens;

// Queries first .. past-1 that see any of keys begin .. end-1; keys from n_k on are ignored.
struct QueryRange {
    int first, past;

    KITTENS_DEVICE QueryRange(const Mask& mask, int begin, int end) {
        const int last_key = (end < mask.n_k ? end : mask.n_k) - 1;
        first = mask.first_query(begin);
        past = begin < mask.n_k ? mask.last_query(last_key) + 1 : 0;
    }
    KITTENS_DEVICE QueryRange(const HistoryMask& mask, int begin, int end) {
        first = mask.earliest_query(begin);
        past = begin < mask.n_k ? mask.furthest_query(begin, end < mask.n_k ? end : mask.n_k) + 1 : 0;
    }
    // Whether all of keys begin .. end-1 are visible to all of queries query .. query+count-1.
    KITTENS_DEVICE static bool all_visible(const Mask& mask, int begin, int end, int query, int count) {
        return mask.first_query(end - 1) <= query && query + count - 1 <= mask.last_query(begin);
    }
    KITTENS_DEVICE static bool all_visible(const HistoryMask& mask, int begin, int end, int query,
                                           int count) {
        return KeyRange::all_visible(mask, query, query + count, begin, end - begin);
    }
};

// `start` is -LSE, base 2. S is not initialized with it, because partial sums would then be rounded at its magnitude. One
// fused step cancels what the two have in common.
KITTENS_DEVICE float exponential(float score, float scale_log2, float start) {
    return exponential_base_2(__builtin_fmaf(score, scale_log2, start));
}

// P from the products of a step and, with score terms, the additional values that dS needs. `count`: registers per lane.
template <ScoreTerms terms, int count>
struct Weights {
    float slope_log2;               // of the head
    float distance;                 // from the first position of the step to the lane's row, with either sign
    vec<float, count> derivatives;  // with a softcap: derivatives of scores with respect to scale q k

    // From the product in register n; its column is `column` past the first one of the step.
    template <int n>
    KITTENS_DEVICE float p(const BackwardArguments& arguments, float product, float start, int column) {
        if constexpr (terms == ScoreTerms::none) {
            return exponential(product, arguments.scale_log2, start);
        } else {
            const ScoreShape<terms> shape(arguments.scale_log2, arguments.terms);
            float derivative = 1;
            const float exponent = shape.score(product, slope_log2, distance + column, -start, derivative);
            derivatives[n] = derivative;
            return exponential_base_2(exponent);
        }
    }
    // The gradient of scale q k from that of the score in register n.
    template <int n>
    KITTENS_DEVICE float unscaled(float ds) const {
        return terms == ScoreTerms::softcap ? ds * derivatives[n] : ds;
    }
};

// P of a product. For pointwise weights: the weight in the gradient of V, otherwise its derivative.
template <int n, bool of_values, ScoreTerms terms, int count>
KITTENS_DEVICE float p_of(Weights<terms, count>& weights, const BackwardArguments& arguments, float product,
                          float start, int column) {
    return weights.template p<n>(arguments, product, start, column);
}
template <int n, bool of_values>
KITTENS_DEVICE float p_of(const SiluWeights& weights, const BackwardArguments&, float product, float, int) {
    return of_values ? weights.weight(product) : weights.derivative(product);
}

// The factor applied to sums of P^T dO.
template <bool dropout>
KITTENS_DEVICE float value_scale(const BackwardArguments& arguments) {
    return dropout ? arguments.dropout.scale : 1.0f;
}
template <bool dropout>
KITTENS_DEVICE float value_scale(const PointwiseBackwardArguments& arguments) {
    return 1.0f / arguments.pointwise.length;
}

// Q or K of a head; with `second`, dO or V.
template <class T, bool of_queries, class SequenceMask>
KITTENS_DEVICE global_matrix<const T> gradient_operand(const BackwardArguments& arguments,
                                                       const SequenceOf<SequenceMask>& sequence, bool second,
                                                       int head, int size) {
    if constexpr (of_queries)
        return query_matrix<T>(second ? arguments.grad_out : arguments.q, sequence, head, size);
    else
        return key_matrix<T>(second ? arguments.v : arguments.k, sequence, head, size);
}

// Bytes from one head of it to the next.
template <class T, bool of_queries, class Arguments>
KITTENS_DEVICE int64_t gradient_head_bytes(const Arguments& arguments, bool second) {
    const int64_t elements = of_queries ? second ? arguments.grad_out.head_stride : arguments.q.head_stride
                             : second   ? arguments.v.head_stride
                                        : arguments.k.head_stride;
    return elements * static_cast<int64_t>(sizeof(T));
}

// For one query.
struct QueryStatistics {
    float start, delta;
};
template <bool with_delta>
KITTENS_DEVICE void load_statistics(QueryStatistics& statistics, const float* all, int64_t row) {
    statistics.start = all[statistic_index(Statistic::start, row)];
    if constexpr (with_delta) statistics.delta = all[statistic_index(Statistic::delta, row)];
}

// The share of `slots` that belongs to `items` of `all` items, starting at item `first`; at least one slot.
constexpr spread_late share_of(int slots, int all, int first, int items) {
    if (!items) return {0, 0, 0, true};
    const int begin = first * slots / all, past = (first + items) * slots / all;
    return {items, begin, past > begin ? past : begin + 1, true};
}

// P is never negative, so its sign can mark dropped elements: they add nothing to dV, and their dP is zero.
// Processes eight adjacent registers from `first` on; a word below the limit drops.
template <class Registers>
KITTENS_DEVICE void mark_dropped(Registers& p, int first, const DropoutDraws::Words& words, uint32_t limit) {
#pragma unroll
    for (int e = 0; e < 8; ++e)
        if (words[e] < limit) p[first + e] = -p[first + e];
}
// All 16 registers of a row of P of one side, whose columns of the other side begin at `column`.
template <bool of_keys, class Registers>
KITTENS_DEVICE void mark_dropped(Registers& p, const DropoutDraws& draws, uint32_t head, int first_row,
                                 int column) {
    const Coordinate own = row_layout(KeyColumns::value(), lane_id(), 0);
    const uint32_t row = first_row + own.row;
#pragma unroll
    for (int e = 0; e < 16; e += 8) {
        const uint32_t first = column + e * 2 + own.col;
        mark_dropped(p, e, of_keys ? draws.of_key(head, first, row) : draws.of_query(head, row, first),
                     draws.limit);
    }
}
// dS for a P marked this way.
KITTENS_DEVICE float ds_of_dropped(float p, float dp, float delta, float dropout_scale) {
    const bool dropped = __builtin_bit_cast(int32_t, p) < 0;
    const float kept = __builtin_fmaf(dp, dropout_scale, delta);
    return absolute_value(p) * (dropped ? delta : kept);
}

}  // namespace hipkittens::attention
