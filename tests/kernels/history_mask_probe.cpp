// tests/kernels/history_mask_probe.cpp: HistoryMask beside its definition, for all short sequences.
// SPDX-License-Identifier: MIT
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "kernels/attention/arguments.h"
#include "kernels/attention/history_mask.h"

using namespace hipkittens::attention;

namespace {

constexpr int longest = 11;

// Of generative-recommenders and AITER: places, and what one sees of another.
struct Definition {
    int length, targets, context, distance;
    bool causal;

    int place(int row) const {
        const int before = context > 0 ? context - 1 : 0, behind = length - targets - before;
        const int own = row > before ? row - before : 0;
        return own < behind ? own : behind;
    }
    bool sees(int i, int j) const {
        const int behind = length - targets - (context > 0 ? context - 1 : 0);
        if (i == j || (context > 0 && place(i) == 0 && place(j) < behind)) return true;
        const int apart = causal ? place(i) - place(j) : std::abs(place(i) - place(j));
        return apart > 0 && (distance == 0 || apart <= distance);
    }
};

int wrong = 0;
void expect(bool right, const char* what, const Definition& of, int a, int b) {
    if (right || ++wrong > 10) return;
    std::printf("%s: length %d, targets %d, context %d, distance %d, causal %d, at %d, %d\n", what, of.length,
                of.targets, of.context, of.distance, of.causal, a, b);
}

void compare(const Definition& of) {
    const HistoryMask mask{
        of.length, of.length, of.context, of.length - of.targets, of.distance ? of.distance : unlimited,
        of.causal};
    const int n = of.length;
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < n; ++j) {
            const bool key = i == j || (mask.first_key(i) <= j && j <= mask.last_key(i));
            const bool query = i == j || (mask.first_query(j) <= i && i <= mask.last_query(j)) ||
                               (mask.in_view_of_context(j) && i < of.context);
            expect(key == of.sees(i, j), "the keys of a query", of, i, j);
            expect(query == of.sees(i, j), "the queries of a key", of, i, j);
        }
    for (int begin = 0; begin < n; ++begin)
        for (int past = begin + 1; past <= n; ++past) {
            for (int row = begin; row < past; ++row)
                for (int other = 0; other < n; ++other) {
                    if (of.sees(row, other))
                        expect(mask.first_key(begin) <= other && other <= mask.furthest_key(begin, past),
                               "the keys of a tile", of, begin, past);
                    if (of.sees(other, row))
                        expect(
                            mask.earliest_query(begin) <= other && other <= mask.furthest_query(begin, past),
                            "the queries of a tile", of, begin, past);
                }
            // Tiles go beyond the last row.
            for (int end = past; end < past + 3; ++end)
                for (int key = mask.first_key(end - 1); key <= mask.last_key_of_all(begin, end); ++key)
                    for (int row = begin; row < past && !mask.alone(); ++row)
                        expect(key < n && of.sees(row, key), "what all rows of a tile see", of, begin, end);
        }
}

}  // namespace

int main() {
    for (int length = 1; length <= longest; ++length)
        for (int targets = 0; targets <= length; ++targets)
            for (int context = 0; context <= length + 2; ++context)
                for (int distance = 0; distance <= length + 1; ++distance)
                    for (const bool causal : {false, true})
                        compare({length, targets, context, distance, causal});
    std::printf("%d\n", wrong);
}
