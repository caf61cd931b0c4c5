// kernels/delta_rule/state_columns.h: a workgroup's columns of a state, and what it reads and stores per chunk.
// SPDX-License-Identifier: MIT
#pragma once
#include "chunk.h"

namespace hipkittens::delta_rule {

// Waves that each have a part of a state.
inline constexpr int scan_waves = 4;

// A workgroup's columns of a state, and a lane's part of them.
struct StateColumns {
    uint32_t sequence, head, key_head, first_column;
    int column, quarter, wave;

    // Workgroups of one state read the same chunks: they are `xcds` apart, so that they share an L2 cache.
    KITTENS_DEVICE StateColumns(const ChunkArguments& arguments, const Divisor& slices, const Divisor& xcds,
                                int columns) {
        const uint32_t round = xcds.quotient(kittens::workgroup_id_x()), group = slices.quotient(round),
                       state = group * xcds.value + kittens::workgroup_id_x() - round * xcds.value;
        sequence = arguments.heads.quotient(state);
        head = state - sequence * arguments.heads.value;
        key_head = arguments.group.quotient(head);
        first_column = (round - group * slices.value) * columns;
        column = kittens::lane_id() % 16;
        quarter = kittens::lane_id() / 16;
        wave = kittens::wave_id();
    }
};

// One chunk of a sequence; outside the sequence it is empty.
struct ChunkOf {
    Span rows;
    uint32_t place;  // of its matrices
    bool is_there;
};

// The chunks of the sequence whose state a workgroup has.
struct ChunksOf {
    Span span;
    uint32_t first_place, heads;
    int32_t count, rows_of_last;

    KITTENS_DEVICE ChunksOf(const ChunkArguments& arguments, const StateColumns& at)
        : span(span_of(arguments.chunks.sequences, at.sequence)),
          first_place(first_chunk(arguments.chunks, at.sequence) * arguments.heads.value + at.head),
          heads(arguments.heads.value),
          count(static_cast<int32_t>((span.tokens + chunk_tokens - 1) / chunk_tokens)),
          rows_of_last(static_cast<int32_t>((span.tokens - 1) % chunk_tokens + 1)) {}
    // Written so that comparisons are scalar; minima and maxima become vector instructions.
    KITTENS_DEVICE int32_t rows_of(int32_t number) const {
        const uint32_t left = static_cast<uint32_t>(count - number);
        return number < 0 || number >= count ? 0 : left == 1 ? rows_of_last : chunk_tokens;
    }
    KITTENS_DEVICE ChunkOf operator[](int32_t number) const {
        const int32_t rows = rows_of(number);
        return {{span.sequence, span.first + static_cast<int64_t>(number) * chunk_tokens, rows},
                first_place + static_cast<uint32_t>(number) * heads,
                rows > 0};
    }
};

// A wave's keys of a state and its workgroup's columns in base tiles, of which a lane has four keys of a column. Keys defines which:
//   count                 base tiles of keys
//   key_of(at, tile)      the first of a lane's four
template <class Keys, int columns>
struct StateTiles {
    static constexpr int key_tiles = Keys::count, column_tiles = columns / 16;
    four tiles[key_tiles][column_tiles];

    // visit(address, element)
    template <class Visit>
    KITTENS_DEVICE void each(const ChunkArguments& arguments, const States& states, int64_t slot,
                             const StateColumns& at, const Visit& visit) {
        auto* base = (global<float>)states.data + slot * states.slot + at.head * states.head;
#pragma unroll
        for (int i = 0; i < key_tiles; ++i)
#pragma unroll
            for (int j = 0; j < column_tiles; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const uint32_t k = Keys::key_of(at, i) + e, v = at.first_column + 16 * j + at.column;
                    float element = tiles[i][j][e];
                    if (k < arguments.key && v < arguments.value)
                        visit(base + k * states.key + v * states.value, element);
                    tiles[i][j][e] = element;
                }
    }
    // Zeros if there are no states.
    KITTENS_DEVICE void load(const ChunkArguments& arguments, const States& states, const StateColumns& at) {
#pragma unroll
        for (int i = 0; i < key_tiles; ++i)
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) tiles[i][j] = 0;
        if (states.data)
            each(arguments, states, at.sequence, at,
                 [](global<float> from, float& element) { element = *from; });
    }
    KITTENS_DEVICE void decay_and_add(int i, four kept, const four (&added)[column_tiles]) {
#pragma unroll
        for (int j = 0; j < column_tiles; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) tiles[i][j][e] = __builtin_fmaf(kept[e], tiles[i][j][e], added[j][e]);
    }
    KITTENS_DEVICE void store(const ChunkArguments& arguments, const States& states, int64_t slot,
                              const StateColumns& at) {
        if (states.data)
            each(arguments, states, slot, at, [](global<float> to, float& element) { *to = element; });
    }
    // For one chunk, in [chunk][head][key][value].
    KITTENS_DEVICE void keep(const ChunkArguments& arguments, float* states, uint32_t place,
                             const StateColumns& at) {
        if (!states) return;
        const int64_t elements = static_cast<int64_t>(arguments.key) * arguments.value;
        store(arguments, {states + place * elements, 0, 0, arguments.value, 1}, 0, at);
    }
};

// A wave's quarter of the keys, in their order.
template <int key>
struct QuarterOfKeys {
    static constexpr int count = key / 16 / scan_waves;
    KITTENS_DEVICE static int key_row(const StateColumns& at) { return 16 * count * at.wave; }
    KITTENS_DEVICE static int key_of(const StateColumns& at, int tile) {
        return key_row(at) + 16 * tile + 4 * at.quarter;
    }
};

// A wave's rows of queries or keys, as operands.
template <class T, int key_steps>
KITTENS_DEVICE void load_rows(fragment<T> (&to)[key_steps], const TokenHeads& of,
                              const ChunkArguments& arguments, const StateColumns& at, const Span& rows) {
    const HeadView<T> view(of, rows, at.key_head);
    const int row = 16 * at.wave + at.column;
#pragma unroll
    for (int s = 0; s < key_steps; ++s) {
        const uint32_t column = 32 * s + 8 * at.quarter;
        const bool is_there = row < rows.tokens && column < arguments.key;
        to[s] = load_fragment<T>(view.memory, view.offset(row, column, is_there));
    }
}

// The rows of a tensor of values, as elements down the workgroup's columns.
template <class T, int column_tiles>
KITTENS_DEVICE void load_columns(ColumnLoads<T> (&to)[column_tiles], const TokenHeads& of,
                                 const ChunkArguments& arguments, const StateColumns& at, const Span& rows) {
    const HeadView<T> view(of, rows, at.head);
#pragma unroll
    for (int j = 0; j < column_tiles; ++j) {
        const uint32_t column = at.first_column + 16 * j + at.column;
        to[j].load(view, rows.tokens, 16 * at.wave, column, column < arguments.value);
    }
}

// [chunk][head][chunk_tokens][value]: a wave's rows of one column tile, of which a lane has four adjacent elements down a column.
KITTENS_DEVICE void keep_values(const ChunkArguments& arguments, float* to, uint32_t place,
                                const StateColumns& at, int column_tile, four values) {
    const uint32_t column = at.first_column + 16 * column_tile + at.column;
    if (__builtin_expect(!to, 1) || column >= arguments.value) return;
    auto* first =
        (global<float>)to +
        (static_cast<int64_t>(place) * chunk_tokens + 16 * at.wave + 4 * at.quarter) * arguments.value +
        column;
#pragma unroll
    for (int e = 0; e < 4; ++e) first[e * static_cast<int64_t>(arguments.value)] = values[e];
}

}  // namespace hipkittens::delta_rule
