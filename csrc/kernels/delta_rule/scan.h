// kernels/delta_rule/scan.h: a gated delta rule chunk after chunk, with the state in accumulators.
// SPDX-License-Identifier: MIT
#pragma once
#include "state_columns.h"

namespace hipkittens::delta_rule {

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
