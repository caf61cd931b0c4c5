// kernels/delta_rule/scan.h: a gated delta rule chunk after chunk, with the state in accumulators.
// SPDX-License-Identifier: MIT
#pragma once
#include "scan_operands.h"

namespace hipkittens::delta_rule {

// With S before the chunk, gamma the rows' log_decay and gamma_C that of the last one:
//     V' = T (beta (V - e^gamma K S)),  O = scale (e^gamma Q S + P V'),  S <- e^gamma_C S + K^T (e^(gamma_C - gamma) V')
// (S. Yang and others, Parallelizing Linear Transformers with the Delta Rule over Sequence Length, 2024, with decays.) Wave w has rows
// 16 w .. of the chunk. What is a float, S, V', T and P, is a sum. Where the decays of K and Q are, is their Operands' affair.
template <ScanConfig config, class Operands>
struct ChunkAfterChunk {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = 64 * scan_waves, waves_per_simd = 1;
    static constexpr int key_steps = config.key / 32, token_steps = chunk_tokens / 32;
    using State = StateTiles<config.key, config.columns>;
    static constexpr int column_tiles = State::column_tiles;

    using OfKeys = SharedSums<T, config.columns, config.key>;
    using OfTokens = SharedSums<T, config.columns, chunk_tokens>;
    static constexpr int lds_bytes = OfKeys::bytes + 2 * OfTokens::bytes + Operands::shared_bytes;

    KITTENS_DEVICE static void run(const ScanArguments& all, kittens::shared_byte* lds) {
        const ChunkArguments& arguments = all.common;
        const StateColumns at(arguments, all.slices, all.xcds, config.columns);
        const Span span = span_of(arguments.chunks.sequences, at.sequence);
        const int64_t chunks = (span.tokens + chunk_tokens - 1) / chunk_tokens;

        const OfKeys shared_state{lds};
        auto* behind = lds + OfKeys::bytes;
        const OfTokens residual{behind}, changes{behind + OfTokens::bytes};
        const int key_row = State::key_row(at), token_row = 16 * at.wave;

        State state;
        state.load(arguments, all.initial, at);
        // What the wave reads of a chunk, as soon as the last chunk's is used up.
        Operands operands(behind + 2 * OfTokens::bytes);
        ColumnLoads<T> v[column_tiles];
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
        const auto load_keys_and_values = [&]() KITTENS_INLINE {
            operands.load_keys(all, at, next);
            load_columns<T>(v, arguments.v, arguments, at, next.rows);
        };
        load_keys_and_values();
        operands.load_queries(all, at, next);
        operands.load_kept_keys(all, at, next);
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
                    from_keys[j] = add_product<T>(operands.k[s], of_state, from_keys[j]);
                    result[j] = add_product<T>(of_state, operands.q[s], result[j]);
                }
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) {
                four rest;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const four row = factors.of_rows[e];
                    rest[e] = row[1] * __builtin_fmaf(-Operands::of_keys(row), from_keys[j][e],
                                                      static_cast<float>(v[j].element(e)));
                }
                residual.write(16 * j + at.column, token_row + 4 * at.quarter, rest);
            }
            // For the state: the barrier before has ended the last chunk's reads of them.
            operands.share_keys(at);
            load_keys_and_values();
            kittens::barrier();

#pragma unroll
            for (int j = 0; j < column_tiles; ++j) {
                four change = 0;
#pragma unroll
                for (int s = 0; s < token_steps; ++s)
                    change =
                        add_product<T>(inverse.columns[s],
                                       residual.read(16 * j + at.column, 32 * s + 8 * at.quarter), change);
                changes.write(16 * j + at.column, token_row + 4 * at.quarter, change);
                operands.share_kept(at, j, change, factors);
                keep_values(arguments, all.changes, chunk.place, at, j, change);
            }
            load_matrix(inverse, ChunkMatrix::inverse);
            kittens::barrier();

            if (all.out.data) {
                const HeadView<T> out(all.out, chunk.rows, at.head);
                const float from_state = Operands::of_queries(factors.own);
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
            operands.load_queries(all, at, next);
            const OfTokens kept = operands.kept_changes(changes);
            const auto ends = operands.ends_of_state(factors);
#pragma unroll
            for (int i = 0; i < State::key_tiles; ++i) {
                // By themselves first: a sum that begins with the state would round as often as it has terms, each time relative to it.
                four added[column_tiles];
#pragma unroll
                for (int j = 0; j < column_tiles; ++j) added[j] = 0;
#pragma unroll
                for (int s = 0; s < token_steps; ++s) {
                    const auto of_keys = operands.kept_keys(at, i, s);
#pragma unroll
                    for (int j = 0; j < column_tiles; ++j)
                        added[j] = add_product<T>(
                            of_keys, kept.read(16 * j + at.column, 32 * s + 8 * at.quarter), added[j]);
                }
                state.decay_and_add(i, ends[i], added);
            }
            operands.load_kept_keys(all, at, next);
        }
        state.store(arguments, all.final, at.sequence, at);
    }
};

template <ScanConfig config>
struct Scan : ChunkAfterChunk<config, HeadOperands<config>> {};
template <ScanConfig config>
struct ChannelScan : ChunkAfterChunk<config, ChannelRows<config>> {};

}  // namespace hipkittens::delta_rule
