// kernels/delta_rule/scan_outputs.h: the waves of a scan that compute the outputs.
// SPDX-License-Identifier: MIT
#pragma once
#include "scan_shared.h"

namespace hipkittens::delta_rule {

template <ScanConfig config, class Operands>
struct Outputs {
    using Shared = ScanShared<config, Operands>;
    using T = typename Shared::T;
    static constexpr int column_tiles = Shared::State::column_tiles;
    // The first products of Q S run during V - K S, where the other waves have no products, and the rest during S. There are not enough
    // registers to hold those of a large key for so long.
    static constexpr bool has_large_keys = config.key > 128;
    static constexpr int key_steps = config.key / 32,
                         early_steps = has_large_keys ? key_steps : key_steps / 2;

    KITTENS_DEVICE static void run(const ScanArguments& all, const StateColumns& at, const ChunksOf& chunks,
                                   const Shared& shared) {
        const ChunkArguments& arguments = all.common;
        if (chunks.count == 0) return;
        const int token_row = 16 * at.wave, row = token_row + at.column;
        typename Operands::Queries queries(all, at, chunks);
        MatrixRows<T> scores;
        four of_row, result[column_tiles] = {}, finished[column_tiles];
        float last, from_state = 0;
        WalkedRows<T> out(all.out, chunks.span, at.head, arguments.value);
        WalkedPlaces matrices(arguments.matrices, chunks, arguments.matrices_of_chunk * matrix_bytes<T>),
            factors(arguments.factors, chunks, chunk_tokens * sizeof(RowFactors));
        const auto load_ahead = [&](int32_t number) KITTENS_INLINE {
            const int32_t rows = chunks.rows_of(number);
            const kittens::buffer memory = factors.memory(rows);
            of_row = kittens::buffer_load<four>(memory, row * sizeof(RowFactors));
            last = kittens::buffer_load<float>(memory, (chunk_tokens - 1) * sizeof(RowFactors));
            queries.load_ahead(at, rows);
            factors.advance();
        };
        const auto take = [&]() KITTENS_INLINE {
            from_state = Operands::of_queries(of_row);
            // Otherwise the next loads would go to other registers, from which they would be copied, and waited for, at once.
            kittens::materialize(from_state);
            shared.factors.write(row, Operands::factors_of(of_row, last));
            queries.take(at, shared.queries);
        };
        const auto load_scores = [&](int32_t number) KITTENS_INLINE {
            scores.load(matrices.memory(chunks.rows_of(number)), ChunkMatrix::scores, token_row);
            matrices.advance();
        };
        // For the previous chunk, with its V'.
        typename Shared::Tokens changes;
        const auto add_changes = [&]() KITTENS_INLINE {
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) {
                finished[j] = result[j];
#pragma unroll
                for (int s = 0; s < token_steps; ++s)
                    if (token_row >= 32 * s)
                        finished[j] = add_product<T>(changes[j][s], scores.columns[s], finished[j]);
            }
        };
        const auto store = [&](int32_t number) KITTENS_INLINE {
            const kittens::buffer memory = out.memory(all.out.data ? chunks.rows_of(number) : 0);
            out.advance();
#pragma unroll
            for (int j = 0; j < column_tiles; ++j)
                kittens::buffer_store(kittens::narrowed<T, 4>(finished[j] * arguments.scale), memory,
                                      out.offset(row, at.first_column + 16 * j + 4 * at.quarter));
        };
        load_ahead(0);
        queries.load(all, at, chunks[0]);
        take();
        load_ahead(1);
        kittens::barrier();
        // They begin before the first chunk, where there is nothing.
        matrices.advance(-1);
        out.advance(-2);
        for (int32_t number = 0; number < chunks.count; ++number) {
            kittens::barrier();  // a
            store(number - 2);
            kittens::schedule_fence();
            four following[column_tiles];
            Sum<T, 8> of_state[column_tiles][key_steps];
            const auto read_state = [&](int j, int s) KITTENS_INLINE {
                of_state[j][s] = shared.state.read(16 * j + at.column, 32 * s + 8 * at.quarter);
            };
            if constexpr (!has_large_keys) {
#pragma unroll
                for (int j = 0; j < column_tiles; ++j)
#pragma unroll
                    for (int s = 0; s < key_steps; ++s) read_state(j, s);
                kittens::schedule_fence();
            }
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) {
                following[j] = 0;
#pragma unroll
                for (int s = 0; s < early_steps; ++s) {
                    if constexpr (has_large_keys) read_state(j, s);
                    following[j] = add_product<T>(of_state[j][s], queries.of_rows[s], following[j]);
                }
                kittens::materialize(following[j]);
            }
            load_scores(number - 1);
            // Keep this work ahead of the barriers: after them, the other waves have their products.
            kittens::schedule_fence();
            kittens::barrier();  // b
            shared.read(shared.changes, at, changes);
            const float of_queries = from_state;
            typename Operands::OfQueries late_queries[key_steps - early_steps + 1];
#pragma unroll
            for (int s = early_steps; s < key_steps; ++s) late_queries[s - early_steps] = queries.of_rows[s];
            queries.load(all, at, chunks[number + 1]);
            take();
            kittens::schedule_fence();
            load_ahead(number + 2);
            kittens::schedule_fence();
            kittens::barrier();  // c
            kittens::schedule_fence();
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) {
#pragma unroll
                for (int s = early_steps; s < key_steps; ++s)
                    following[j] =
                        add_product<T>(of_state[j][s], late_queries[s - early_steps], following[j]);
                following[j] *= of_queries;
            }
            kittens::schedule_fence();
            add_changes();
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) result[j] = following[j];
        }
        load_scores(chunks.count - 1);
        kittens::barrier();  // a
        store(chunks.count - 2);
        shared.read(shared.changes, at, changes);
        add_changes();
        store(chunks.count - 1);
    }
};

}  // namespace hipkittens::delta_rule
