// kernels/attention/history_mask.h: visibility between rows of a sequence made of context, history and targets.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

namespace hipkittens::attention {

// A sequence attends to itself. Its first `context` rows share position 0, its rows from first_target on share the position after
// the last of the others, and every other row has its own position. Row i sees row j
//     if i is j;
//     if the position of i is after that of j (without `causal`: differs from it), by no more than `distance`;
//     if i has position 0 in a context, and j is not a target.
// This is one interval of rows plus the row itself. If no position is left between context and targets (first_target less than
// context, or 0), a row sees only itself: this is what AITER's hstu_attention and its model, generative-recommenders, compute.
struct HistoryMask {
    int32_t n_q, n_k;  // equal
    int32_t context;
    int32_t first_target;  // n_q: there are no targets
    int32_t distance;      // unlimited: no limit
    int32_t causal;

    constexpr bool alone() const { return first_target < (context > 1 ? context : 1); }
    constexpr bool is_target(int row) const { return row >= first_target; }

    // The ends of the interval. No later query has an earlier first key.
    constexpr int first_key(int query) const {
        if (alone()) return query;
        const int key = (is_target(query) ? first_target : query) - distance;
        return key < context ? 0 : key;
    }
    constexpr int last_key(int query) const {
        if (alone()) return query;
        const bool of_context = query < context;
        if (is_target(query)) return first_target - 1;
        if (causal) return of_context ? first_target - 1 : query;
        const int key = (of_context ? context - 1 : query) + distance;
        if (key >= first_target) return n_k - 1;
        return of_context ? first_target - 1 : key;
    }
    // In addition to the first `context` queries, if they see this key.
    constexpr int first_query(int key) const {
        if (alone() || (causal && key >= context)) return key;
        const int query = (is_target(key) ? first_target : key) - distance;
        return query < context ? 0 : query;
    }
    constexpr int last_query(int key) const {
        if (alone()) return key;
        if (is_target(key)) return causal ? key : first_target - 1;
        const int query = (key < context ? context - 1 : key) + distance;
        return query >= first_target ? n_q - 1 : query;
    }
    constexpr bool in_view_of_context(int key) const { return !alone() && !is_target(key); }

    // For rows begin .. past-1: the last key that any of them sees, and the last key of the range that all of them see.
    constexpr int furthest_key(int begin, int past) const {
        const int last = past - 1;
        int key = last;
        if (!is_target(begin)) {
            key = larger(key, last_key(begin));
            key = larger(key, last_key(is_target(last) ? first_target - 1 : last));
        }
        return key;
    }
    constexpr int last_key_of_all(int begin, int past) const {
        const int last = past - 1, behind_context = context < begin ? begin : context > last ? last : context;
        return smaller(last_key(begin), smaller(last_key(behind_context), last_key(last)));
    }
    // For keys begin .. past-1: the first and the last query that sees any of them.
    constexpr int earliest_query(int begin) const {
        return context > 0 && in_view_of_context(begin) ? 0 : first_query(begin);
    }
    constexpr int furthest_query(int begin, int past) const {
        const int last = past - 1;
        if (is_target(begin)) return last;
        return larger(last, last_query(is_target(last) ? first_target - 1 : last));
    }

  private:
    static constexpr int larger(int a, int b) { return a > b ? a : b; }
    static constexpr int smaller(int a, int b) { return a < b ? a : b; }
};

}  // namespace hipkittens::attention
