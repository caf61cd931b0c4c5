// kernels/attention/backward_scores.h: which queries see a key, P of a score, and dS of P and dP.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "dropout.h"
#include "mask.h"

namespace hipkittens::attention {

using namespace kittens;

// Queries first .. past-1 that some of keys begin .. end-1 are visible to; keys from n_k on do not count.
struct QueryRange {
    int first, past;

    KITTENS_DEVICE QueryRange(const Mask& mask, int begin, int end) {
        const int last_key = (end < mask.n_k ? end : mask.n_k) - 1;
        first = mask.first_query(begin);
        past = begin < mask.n_k ? mask.last_query(last_key) + 1 : 0;
    }
    // Do all of keys begin .. end-1 see all of queries query .. query+count-1?
    KITTENS_DEVICE static bool all_visible(const Mask& mask, int begin, int end, int query, int count) {
        return mask.first_query(end - 1) <= query && query + count - 1 <= mask.last_query(begin);
    }
};

// `start` is -LSE, base 2. S does not start from it: sums of products would be rounded in its units. One fused step cancels
// what both have in common.
KITTENS_DEVICE float exponential(float score, float scale_log2, float start) {
    return exponential_base_2(__builtin_fmaf(score, scale_log2, start));
}

// P is never negative, so a sign can say that it was dropped: it adds nothing to dV, and its dP is zero. Eight
// neighbouring registers from `first` on; a word below the limit drops.
template <class Registers>
KITTENS_DEVICE void mark_dropped(Registers& p, int first, const DropoutDraws::Words& words, uint32_t limit) {
#pragma unroll
    for (int e = 0; e < 8; ++e)
        if (words[e] < limit) p[first + e] = -p[first + e];
}
// dS of such a P.
KITTENS_DEVICE float ds_of_dropped(float p, float dp, float delta, float dropout_scale) {
    const bool dropped = __builtin_bit_cast(int32_t, p) < 0;
    const float kept = __builtin_fmaf(dp, dropout_scale, delta);
    return absolute_value(p) * (dropped ? delta : kept);
}

}  // namespace hipkittens::attention
