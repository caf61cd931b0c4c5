// kernels/delta_rule/chunk.h: where a chunk's rows are, and matrices of floats as sums of two narrower ones.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/convert.h"
#include "../../tiles/matrix_intrinsics.h"
#include "../../tiles/transcendental.h"
#include "../element_of.h"
#include "kinds.h"

namespace hipkittens::delta_rule {

template <class T>
using global = __attribute__((address_space(1))) T*;
using four = kittens::vec<float, 4>;

struct Span {
    uint32_t sequence;
    int64_t first;  // token, from its sequence's stride on
    int64_t tokens;
};
KITTENS_DEVICE Span span_of(const Sequences& sequences, uint32_t sequence) {
    if (!sequences.starts) return {sequence, 0, sequences.length};
    auto* starts = (global<const int32_t>)sequences.starts;
    const int32_t first = starts[sequence];
    return {sequence, first, starts[sequence + 1] - first};
}
KITTENS_DEVICE uint32_t first_chunk(const Chunks& chunks, uint32_t sequence) {
    if (!chunks.sequences.starts) return sequence * chunks.per_sequence.value;
    return static_cast<uint32_t>(((global<const int32_t>)chunks.sequences.starts)[sequence]) / chunk_tokens +
           sequence;
}
// The rows of a chunk: none where a number belongs to no chunk.
KITTENS_DEVICE Span rows_of_chunk(const Chunks& chunks, uint32_t number) {
    uint32_t sequence = 0;
    if (!chunks.sequences.starts) {
        sequence = chunks.per_sequence.quotient(number);
    } else {
        // The last sequence whose first chunk is not behind this one.
        uint32_t past = chunks.sequences.count;
        while (past - sequence > 1) {
            const uint32_t middle = (sequence + past) / 2;
            if (first_chunk(chunks, middle) <= number)
                sequence = middle;
            else
                past = middle;
        }
    }
    Span span = span_of(chunks.sequences, sequence);
    const int64_t before = static_cast<int64_t>(number - first_chunk(chunks, sequence)) * chunk_tokens;
    span.first += before;
    span.tokens -= before;
    if (span.tokens > chunk_tokens) span.tokens = chunk_tokens;
    return span;
}

// The rows of one head from token `first` on. What is masked is read beyond the end, as zero.
template <class T>
struct HeadView {
    kittens::buffer memory;
    uint32_t step;  // bytes

    KITTENS_DEVICE HeadView(const TokenHeads& heads, const Span& span, uint32_t head)
        : memory{(const char*)heads.data +
                     (span.sequence * heads.sequence + span.first * heads.token + head * heads.head) *
                         static_cast<int64_t>(sizeof(T)),
                 0x80000000u},
          step(static_cast<uint32_t>(heads.token * sizeof(T))) {}
    KITTENS_DEVICE uint32_t offset(uint32_t row, uint32_t column, bool is_there) const {
        return is_there ? row * step + column * sizeof(T) : ~uint32_t{255};
    }
};

// x as the sum of what it is rounded to and the rounded rest: with products of both, the error of a 16-bit operand is gone.
template <class T>
struct Halves {
    kittens::vec<T, 4> high, low;
    KITTENS_DEVICE explicit Halves(four x)
        : high(kittens::narrowed<T, 4>(x)),
          low(kittens::narrowed<T, 4>(x - __builtin_convertvector(high, four))) {}
};

// e^x of a difference of sums of logarithms, which is not positive.
KITTENS_DEVICE float decay(float x) { return kittens::exponential<true>(x); }

// Rows of 16-bit elements in LDS, read by 16 rows and four vectors of 8 neighbours: vectors exchange places by their row, so
// that eight rows lie in different banks.
template <class T, int pitch>
struct SharedRows {
    static constexpr int bytes_of_row = pitch * static_cast<int>(sizeof(T));
    kittens::shared_byte* base;
    KITTENS_DEVICE kittens::shared_byte* at(int row, int column) const {
        return base + row * bytes_of_row + ((column / 8) ^ (row & 7)) * 16 + column % 8 * 2;
    }
    KITTENS_DEVICE kittens::vec<T, 8> fragment(int row, int column) const {
        return kittens::lds_read<kittens::vec<T, 8>>(at(row, column));
    }
};

}  // namespace hipkittens::delta_rule
