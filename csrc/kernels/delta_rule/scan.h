// kernels/delta_rule/scan.h: a gated delta rule chunk after chunk, with the state in accumulators.
// SPDX-License-Identifier: MIT
#pragma once
#include "chunk.h"

namespace hipkittens::delta_rule {

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

// One chunk of a sequence; behind its ends there is nothing.
struct ChunkOf {
    Span rows;
    uint32_t place;  // of its matrices
    bool is_there;

    KITTENS_DEVICE ChunkOf(const ChunkArguments& arguments, const StateColumns& at, const Span& span,
                           int64_t number) {
        const int64_t before = number * chunk_tokens;
        rows = {span.sequence, span.first + before, span.tokens - before};
        if (rows.tokens > chunk_tokens) rows.tokens = chunk_tokens;
        is_there = number >= 0 && rows.tokens > 0;
        if (!is_there) rows.tokens = 0;
        place = (first_chunk(arguments.chunks, at.sequence) + static_cast<uint32_t>(number)) *
                    arguments.heads.value +
                at.head;
    }
};

// A wave's quarter of the keys: base tiles of 16 keys and 16 columns, in which a lane has four neighbouring keys of a column.
template <int key, int columns>
struct StateTiles {
    static constexpr int key_tiles = key / 16 / scan_waves, column_tiles = columns / 16;
    four tiles[key_tiles][column_tiles];

    KITTENS_DEVICE static int key_row(const StateColumns& at) { return 16 * key_tiles * at.wave; }
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
                    const uint32_t k = key_row(at) + 16 * i + 4 * at.quarter + e,
                                   v = at.first_column + 16 * j + at.column;
                    float element = tiles[i][j][e];
                    if (k < arguments.key && v < arguments.value)
                        visit(base + k * states.key + v * states.value, element);
                    tiles[i][j][e] = element;
                }
    }
    // Zeros where there are no states.
    KITTENS_DEVICE void load(const ChunkArguments& arguments, const States& states, const StateColumns& at) {
#pragma unroll
        for (int i = 0; i < key_tiles; ++i)
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) tiles[i][j] = 0;
        if (states.data)
            each(arguments, states, at.sequence, at,
                 [](global<float> from, float& element) { element = *from; });
    }
    KITTENS_DEVICE void store(const ChunkArguments& arguments, const States& states, int64_t slot,
                              const StateColumns& at) {
        if (states.data)
            each(arguments, states, slot, at, [](global<float> to, float& element) { *to = element; });
    }
    // One chunk's, of [chunk][head][key][value].
    KITTENS_DEVICE void keep(const ChunkArguments& arguments, float* states, uint32_t place,
                             const StateColumns& at) {
        if (!states) return;
        const int64_t elements = static_cast<int64_t>(arguments.key) * arguments.value;
        store(arguments, {states + place * elements, 0, 0, arguments.value, 1}, 0, at);
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

// Those of a tensor of values, as elements down the workgroup's columns.
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

// [chunk][head][chunk_tokens][value]: a wave's rows of one column tile, of which a lane has four neighbours down a column.
KITTENS_DEVICE void keep_values(const ChunkArguments& arguments, float* to, uint32_t place,
                                const StateColumns& at, int column_tile, four values) {
    const uint32_t column = at.first_column + 16 * column_tile + at.column;
    if (!to || column >= arguments.value) return;
    auto* first =
        (global<float>)to +
        (static_cast<int64_t>(place) * chunk_tokens + 16 * at.wave + 4 * at.quarter) * arguments.value +
        column;
#pragma unroll
    for (int e = 0; e < 4; ++e) first[e * static_cast<int64_t>(arguments.value)] = values[e];
}

// With S before the chunk, gamma the rows' log_decay and gamma_C that of the last one:
//     V' = T (beta (V - e^gamma K S)),  O = scale (e^gamma Q S + P V'),  S <- e^gamma_C S + K^T (e^(gamma_C - gamma) V')
// (S. Yang and others, Parallelizing Linear Transformers with the Delta Rule over Sequence Length, 2024, with decays.) Wave w has rows
// 16 w .. of the chunk. Q and K are operands as they are; what is a float, S, V', T and P, is a sum.
template <ScanConfig config>
struct Scan {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = 64 * scan_waves, waves_per_simd = 1;
    static constexpr int key_steps = config.key / 32, token_steps = chunk_tokens / 32;
    using State = StateTiles<config.key, config.columns>;
    static constexpr int column_tiles = State::column_tiles;

    using OfKeys = SharedSums<T, config.columns, config.key>;
    using OfTokens = SharedSums<T, config.columns, chunk_tokens>;
    using Transposed = SharedRows<T, chunk_tokens>;
    static constexpr int lds_bytes =
        OfKeys::bytes + 3 * OfTokens::bytes + config.key * Transposed::bytes_of_row;

    // What the wave reads of a chunk, as soon as the last chunk's is used up.
    struct Inputs {
        fragment<T> q[key_steps], k[key_steps];
        ColumnLoads<T> v[column_tiles];

        KITTENS_DEVICE void load_queries(const ChunkArguments& arguments, const StateColumns& at,
                                         const ChunkOf& chunk) {
            load_rows<T>(q, arguments.q, arguments, at, chunk.rows);
        }
        KITTENS_DEVICE void load_keys_and_values(const ChunkArguments& arguments, const StateColumns& at,
                                                 const ChunkOf& chunk) {
            const Span& rows = chunk.rows;
            load_rows<T>(k, arguments.k, arguments, at, rows);
            load_columns<T>(v, arguments.v, arguments, at, rows);
        }
    };

    KITTENS_DEVICE static void run(const ScanArguments& all, kittens::shared_byte* lds) {
        const ChunkArguments& arguments = all.common;
        const StateColumns at(arguments, all.slices, all.xcds, config.columns);
        const Span span = span_of(arguments.chunks.sequences, at.sequence);
        const int64_t chunks = (span.tokens + chunk_tokens - 1) / chunk_tokens;

        const OfKeys shared_state{lds};
        auto* behind = lds + OfKeys::bytes;
        const OfTokens residual{behind}, changes{behind + OfTokens::bytes},
            kept_changes{behind + 2 * OfTokens::bytes};
        const Transposed keys{behind + 3 * OfTokens::bytes};
        const int key_row = State::key_row(at), token_row = 16 * at.wave;

        State state;
        state.load(arguments, all.initial, at);
        Inputs inputs;
        MatrixRows<T> inverse, scores;
        LaneFactors next_factors;
        ChunkOf next(arguments, at, span, 0);
        const auto load_matrix = [&](MatrixRows<T>& matrix, ChunkMatrix which) KITTENS_INLINE {
            matrix.load(arguments.matrices, arguments.matrices_of_chunk, which, next.place, next.is_there,
                        token_row);
        };
        const auto load_factors = [&]() KITTENS_INLINE {
            next_factors.load(arguments.factors, next.place, next.is_there, token_row);
        };
        inputs.load_keys_and_values(arguments, at, next);
        inputs.load_queries(arguments, at, next);
        load_matrix(inverse, ChunkMatrix::inverse);
        load_matrix(scores, ChunkMatrix::scores);
        load_factors();
        for (int64_t number = 0; number < chunks; ++number) {
            const LaneFactors factors = next_factors;
            const ChunkOf chunk = next;
            next = ChunkOf(arguments, at, span, number + 1);
            state.keep(arguments, all.states, chunk.place, at);
#pragma unroll
            for (int i = 0; i < State::key_tiles; ++i)
#pragma unroll
                for (int j = 0; j < column_tiles; ++j)
                    shared_state.write(16 * j + at.column, key_row + 16 * i + 4 * at.quarter,
                                       state.tiles[i][j]);
            load_factors();
            kittens::barrier();

            four from_keys[column_tiles], result[column_tiles];
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) from_keys[j] = result[j] = 0;
#pragma unroll
            for (int s = 0; s < key_steps; ++s)
#pragma unroll
                for (int j = 0; j < column_tiles; ++j) {
                    const auto of_state = shared_state.read(16 * j + at.column, 32 * s + 8 * at.quarter);
                    from_keys[j] = add_product<T>(inputs.k[s], of_state, from_keys[j]);
                    result[j] = add_product<T>(of_state, inputs.q[s], result[j]);
                }
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) {
                four rest;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const four row = factors.of_rows[e];
                    rest[e] = row[1] * __builtin_fmaf(-decay(row[0]) * row[2], from_keys[j][e],
                                                      static_cast<float>(inputs.v[j].element(e)));
                }
                residual.write(16 * j + at.column, token_row + 4 * at.quarter, rest);
            }
            // For the state: the barrier before has ended the last chunk's reads of them.
#pragma unroll
            for (int s = 0; s < key_steps; ++s)
                keys.write_transposed(token_row + at.column, 32 * s + 8 * at.quarter, inputs.k[s]);
            inputs.load_keys_and_values(arguments, at, next);
            kittens::barrier();

#pragma unroll
            for (int j = 0; j < column_tiles; ++j) {
                four change = 0, kept;
#pragma unroll
                for (int s = 0; s < token_steps; ++s)
                    change =
                        add_product<T>(inverse.columns[s],
                                       residual.read(16 * j + at.column, 32 * s + 8 * at.quarter), change);
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    kept[e] = change[e] * decay(factors.last - factors.of_rows[e][0]) * factors.of_rows[e][2];
                changes.write(16 * j + at.column, token_row + 4 * at.quarter, change);
                kept_changes.write(16 * j + at.column, token_row + 4 * at.quarter, kept);
                keep_values(arguments, all.changes, chunk.place, at, j, change);
            }
            load_matrix(inverse, ChunkMatrix::inverse);
            kittens::barrier();

            if (all.out.data) {
                const HeadView<T> out(all.out, chunk.rows, at.head);
                const float from_state = decay(factors.own[0]) * factors.own[3];
#pragma unroll
                for (int j = 0; j < column_tiles; ++j) {
                    result[j] *= from_state;
#pragma unroll
                    for (int s = 0; s < token_steps; ++s)
                        result[j] = add_product<T>(changes.read(16 * j + at.column, 32 * s + 8 * at.quarter),
                                                   scores.columns[s], result[j]);
                    const int row = token_row + at.column;
                    const uint32_t column = at.first_column + 16 * j + 4 * at.quarter;
                    kittens::buffer_store(
                        kittens::narrowed<T, 4>(result[j] * arguments.scale), out.memory,
                        out.offset(row, column, row < chunk.rows.tokens && column < arguments.value));
                }
                load_matrix(scores, ChunkMatrix::scores);
            }
            inputs.load_queries(arguments, at, next);
            const float last = decay(factors.last);
#pragma unroll
            for (int i = 0; i < State::key_tiles; ++i) {
#pragma unroll
                for (int j = 0; j < column_tiles; ++j) state.tiles[i][j] *= last;
#pragma unroll
                for (int s = 0; s < token_steps; ++s) {
                    const fragment<T> of_keys =
                        keys.read(key_row + 16 * i + at.column, 32 * s + 8 * at.quarter);
#pragma unroll
                    for (int j = 0; j < column_tiles; ++j)
                        state.tiles[i][j] = add_product<T>(
                            of_keys, kept_changes.read(16 * j + at.column, 32 * s + 8 * at.quarter),
                            state.tiles[i][j]);
                }
            }
        }
        state.store(arguments, all.final, at.sequence, at);
    }
};

}  // namespace hipkittens::delta_rule
