// kernels/delta_rule/chunk.h: the location of a chunk's rows, and its matrices in LDS and in memory.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/convert.h"
#include "../../tiles/lane_intrinsics.h"
#include "../../tiles/matrix_intrinsics.h"
#include "../../tiles/row_chunk.h"
#include "../../tiles/transcendental.h"
#include "../element_of.h"
#include "kinds.h"
#include "sum.h"

namespace hipkittens::delta_rule {

template <class T>
using global = __attribute__((address_space(1))) T*;

struct Span {
    uint32_t sequence;
    int64_t first;  // token, relative to the sequence's stride
    int64_t tokens;
};
KITTENS_DEVICE Span span_of(const Sequences& sequences, uint32_t sequence) {
    if (__builtin_expect(!sequences.starts, 1)) return {sequence, 0, sequences.length};
    auto* starts = (global<const int32_t>)sequences.starts;
    const int32_t first = starts[sequence];
    return {sequence, first, starts[sequence + 1] - first};
}
KITTENS_DEVICE uint32_t first_chunk(const Chunks& chunks, uint32_t sequence) {
    if (!chunks.sequences.starts) return sequence * chunks.per_sequence.value;
    return static_cast<uint32_t>(((global<const int32_t>)chunks.sequences.starts)[sequence]) / chunk_tokens +
           sequence;
}
// The rows of a chunk: none if the index belongs to no chunk.
KITTENS_DEVICE Span rows_of_chunk(const Chunks& chunks, uint32_t number) {
    uint32_t sequence = 0;
    if (!chunks.sequences.starts) {
        sequence = chunks.per_sequence.quotient(number);
    } else {
        // The last sequence whose first chunk is at or before this one.
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

// The rows of one head from token `first` on. Masked elements are read past the end, as zero.
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

template <class T>
KITTENS_DEVICE fragment<T> load_fragment(kittens::buffer memory, uint32_t offset) {
    return kittens::load_raw_at<T>(memory, offset);
}

// e^x for a difference of sums of logarithms, which is not positive.
KITTENS_DEVICE float decay(float x) { return kittens::exponential<true>(x); }

// Rows in LDS, of which 16 lanes read 8 adjacent elements each: 16-byte vectors are permuted depending on their row, so that
// rows that are read at the same time are in different banks.
template <class T, int pitch>
struct SharedRows {
    static constexpr int bytes_of_row = pitch * static_cast<int>(sizeof(T)), slots = bytes_of_row / 16;
    kittens::shared_byte* base;
    KITTENS_DEVICE kittens::shared_byte* at(int row, int column) const {
        const int byte = column * static_cast<int>(sizeof(T));
        return base + row * bytes_of_row + ((byte / 16) ^ (row & (slots < 16 ? 7 : 15))) * 16 + byte % 16;
    }
    KITTENS_DEVICE fragment<T> read(int row, int column) const {
        if constexpr (kittens::is_16bit<T>) {
            return kittens::lds_read<fragment<T>>(at(row, column));
        } else {
            fragment<T> result;
            result.lo = kittens::lds_read<four>(at(row, column));
            result.hi = kittens::lds_read<four>(at(row, column + 4));
            return result;
        }
    }
    KITTENS_DEVICE void write(int row, int column, kittens::vec<T, 4> values) const {
        kittens::lds_write(values, at(row, column));
    }
    KITTENS_DEVICE void write(int row, int column, fragment<T> values) const {
        if constexpr (kittens::is_16bit<T>) {
            kittens::lds_write(values, at(row, column));
        } else {
            kittens::lds_write(four(values.lo), at(row, column));
            kittens::lds_write(four(values.hi), at(row, column + 4));
        }
    }
    // Writes columns column .. + 7 of row `row` transposed, one to each row. Lanes of adjacent rows exchange halves where two
    // elements share a bank.
    KITTENS_DEVICE void write_transposed(int row, int column, fragment<T> values) const {
        if constexpr (kittens::is_16bit<T>) {
            const bool is_odd = row % 2;
            const auto words = __builtin_bit_cast(kittens::b128, values);
            kittens::vec<uint32_t, 2> own, other;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                own[n] = is_odd ? words[2 + n] : words[n];
                other[n] = kittens::permute_in_4<1, 0, 3, 2>(is_odd ? words[n] : words[2 + n]);
            }
            const auto mine = __builtin_bit_cast(kittens::vec<T, 4>, own),
                       theirs = __builtin_bit_cast(kittens::vec<T, 4>, other);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const kittens::vec<T, 2> pair = {is_odd ? theirs[e] : mine[e], is_odd ? mine[e] : theirs[e]};
                kittens::lds_write(pair, at(column + 4 * is_odd + e, row / 2 * 2));
            }
        } else {
#pragma unroll
            for (int e = 0; e < 8; ++e) kittens::lds_write(values[e], at(column + e, row));
        }
    }
};

// Rows of floats stored as sums.
template <class T, int rows, int pitch>
struct SharedSums {
    using Rows = SharedRows<T, pitch>;
    static constexpr int bytes_of_part = rows * Rows::bytes_of_row, bytes = parts<T> * bytes_of_part;
    kittens::shared_byte* base;

    KITTENS_DEVICE Rows part(int n) const { return {base + n * bytes_of_part}; }
    KITTENS_DEVICE void write(int row, int column, four values) const {
        const Sum<T, 4> sum(values);
#pragma unroll
        for (int n = 0; n < parts<T>; ++n) part(n).write(row, column, sum.part[n]);
    }
    KITTENS_DEVICE void write(int row, int column, const Sum<T, 8>& sum) const {
#pragma unroll
        for (int n = 0; n < parts<T>; ++n) part(n).write(row, column, sum.part[n]);
    }
    // Down a column.
    KITTENS_DEVICE void write_transposed(int row, int column, four values) const {
        const Sum<T, 4> sum(values);
#pragma unroll
        for (int n = 0; n < parts<T>; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) kittens::lds_write(sum.part[n][e], part(n).at(row + e, column));
    }
    KITTENS_DEVICE Sum<T, 8> read(int row, int column) const {
        Sum<T, 8> sum;
#pragma unroll
        for (int n = 0; n < parts<T>; ++n) sum.part[n] = part(n).read(row, column);
        return sum;
    }
};

// The matrices of a chunk that prepare stores in addition to factors.
enum class ChunkMatrix { inverse, scores, inverse_transposed, scores_transposed };
template <class T>
inline constexpr uint32_t matrix_bytes = chunk_tokens * chunk_tokens * parts<T> * sizeof(T);

// The 8 elements that a lane of wave row / 16 has of 32 columns are contiguous, and so are the lanes: an operand is one contiguous block.
template <int columns = chunk_tokens>
KITTENS_DEVICE constexpr int matrix_element(int row, int column) {
    const int lane = column % 32 / 8 * 16 + row % 16;
    return ((row / 16 * (columns / 32) + column / 32) * kittens::wave_lanes + lane) * 8 + column % 8;
}

// Elements column .. + 7 of a row. Each part of the matrix has `elements` elements.
template <class T, int columns>
KITTENS_DEVICE Sum<T, 8> load_matrix_element(kittens::buffer memory, uint32_t elements, int row, int column,
                                             uint32_t first = 0) {
    Sum<T, 8> sum;
#pragma unroll
    for (int n = 0; n < parts<T>; ++n)
        sum.part[n] = load_fragment<T>(memory, first + (n * elements + matrix_element<columns>(row, column)) *
                                                           static_cast<uint32_t>(sizeof(T)));
    return sum;
}

// Rows first_row .. of a matrix with `columns` columns, as operands. `first`: of the matrix in memory; its parts have `elements` each.
template <class T, int columns>
KITTENS_DEVICE void load_matrix_rows(Sum<T, 8> (&to)[columns / 32], kittens::buffer memory, uint32_t first,
                                     uint32_t elements, int first_row) {
    const int row = first_row + kittens::lane_id() % 16, column = kittens::lane_id() / 16 * 8;
#pragma unroll
    for (int n = 0; n < parts<T>; ++n)
#pragma unroll
        for (int s = 0; s < columns / 32; ++s) {
            const uint32_t at = n * elements + matrix_element<columns>(row, 32 * s + column);
            to[s].part[n] = load_fragment<T>(memory, first + at * sizeof(T));
        }
}

// Rows 16 w .. of one of prepare's matrices, for wave w, as a left operand. Past the last chunk nothing is loaded, and zeros are read.
template <class T>
struct MatrixRows {
    Sum<T, 8> columns[chunk_tokens / 32];

    // `memory`: the matrices of the chunk. Half rows above the diagonal (below it for transposed matrices) are zero and are not
    // read.
    KITTENS_DEVICE void load(kittens::buffer memory, ChunkMatrix which, int first_row) {
        const bool is_lower = which == ChunkMatrix::inverse || which == ChunkMatrix::scores;
        const int lane = kittens::lane_id();
#pragma unroll
        for (int s = 0; s < chunk_tokens / 32; ++s) {
            kittens::buffer half = memory;
            if (is_lower ? first_row < 32 * s : first_row >= 32 * (s + 1)) half.bytes = 0;
            columns[s] = load_matrix_element<T, chunk_tokens>(half, chunk_tokens * chunk_tokens,
                                                              first_row + lane % 16, 32 * s + lane / 16 * 8,
                                                              static_cast<uint32_t>(which) * matrix_bytes<T>);
        }
    }
};

// Factors of the rows that a lane has in either layout of an accumulator: its own row, and four adjacent ones.
struct LaneFactors {
    four own, of_rows[4];  // RowFactors
    float last;            // log_decay of the chunk

    KITTENS_DEVICE void load(const RowFactors* factors, uint32_t place, bool is_there, int first_row) {
        constexpr uint32_t bytes = chunk_tokens * sizeof(RowFactors);
        const kittens::buffer memory{(const char*)factors + static_cast<int64_t>(place) * bytes,
                                     is_there ? bytes : 0};
        const uint32_t first = first_row * sizeof(RowFactors), lane = kittens::lane_id();
        own = kittens::buffer_load<four>(memory, first + lane % 16 * sizeof(RowFactors));
#pragma unroll
        for (int e = 0; e < 4; ++e)
            of_rows[e] = kittens::buffer_load<four>(memory, first + (lane / 16 * 4 + e) * sizeof(RowFactors));
        last = kittens::buffer_load<float>(memory, (chunk_tokens - 1) * sizeof(RowFactors));
    }
};

// Four tokens first_row + 4 (lane / 16) .. of the lane's column: as dwords, since joining two elements would wait for the loads.
template <class T>
struct ColumnLoads {
    uint32_t words[4];

    KITTENS_DEVICE void load(const HeadView<T>& view, int64_t tokens, int first_row, uint32_t column,
                             bool is_there) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int token = first_row + kittens::lane_id() / 16 * 4 + e;
            words[e] = kittens::buffer_load<uint32_t>(
                view.memory,
                view.offset(token, kittens::is_16bit<T> ? column & ~1u : column, is_there && token < tokens));
        }
    }
    // For rows that end with their buffer.
    template <class Rows>
    KITTENS_DEVICE void load(const Rows& rows, kittens::buffer memory, int first_row, uint32_t column) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
            words[e] = kittens::buffer_load<uint32_t>(
                memory, rows.offset(first_row + kittens::lane_id() / 16 * 4 + e,
                                    kittens::is_16bit<T> ? column & ~1u : column));
    }
    // column must be even in exactly the lanes with an even index.
    KITTENS_DEVICE T element(int e) const {
        if constexpr (kittens::is_16bit<T>)
            return __builtin_bit_cast(
                T, static_cast<uint16_t>(kittens::lane_id() % 2 ? words[e] >> 16 : words[e]));
        else
            return __builtin_bit_cast(T, words[e]);
    }
};

}  // namespace hipkittens::delta_rule
