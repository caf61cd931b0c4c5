// kernels/delta_rule/scan_changes.h: the waves of a scan that hold the state.
// SPDX-License-Identifier: MIT
#pragma once
#include "scan_shared.h"

namespace hipkittens::delta_rule {

template <ScanConfig config, class Operands>
struct Changes {
    using Shared = ScanShared<config, Operands>;
    using T = typename Shared::T;
    using State = typename Shared::State;
    static constexpr int column_tiles = State::column_tiles;
    // There are not enough registers to hold all operands of a large key a chunk ahead.
    static constexpr bool has_large_keys = config.key > 128;

    KITTENS_DEVICE static Sum<T, 8> joined(const Sum<T, 4>& first, const Sum<T, 4>& second) {
        Sum<T, 8> both;
#pragma unroll
        for (int n = 0; n < parts<T>; ++n)
            both.part[n] = __builtin_shufflevector(first.part[n], second.part[n], 0, 1, 2, 3, 4, 5, 6, 7);
        return both;
    }

    // What the other waves need of the state before a chunk.
    KITTENS_DEVICE static void share(const State& state, const typename Operands::Keys& keys,
                                     const StateColumns& at, const Shared& shared) {
        if (State::waves < scan_waves && at.wave >= State::waves) return;
        four from_keys[row_tiles][column_tiles];
#pragma unroll
        for (int t = 0; t < row_tiles; ++t)
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) from_keys[t][j] = 0;
#pragma unroll
        for (int p = 0; p < State::pairs; ++p)
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) {
                Sum<T, 8> of_state;
                if constexpr (has_short_products<T>) {
                    // The products of the first tile do not wait for the second tile.
                    const Sum<T, 4> first(state.tiles[2 * p][j]), second(state.tiles[2 * p + 1][j]);
#pragma unroll
                    for (int t = 0; t < row_tiles; ++t)
                        from_keys[t][j] = add_short_product<T, 0>(keys.of_rows[p][t], first, from_keys[t][j]);
#pragma unroll
                    for (int t = 0; t < row_tiles; ++t)
                        from_keys[t][j] =
                            add_short_product<T, 1>(keys.of_rows[p][t], second, from_keys[t][j]);
                    of_state = joined(first, second);
                } else {
                    of_state = Sum<T, 8>(state.pair(p, j));
#pragma unroll
                    for (int t = 0; t < row_tiles; ++t)
                        from_keys[t][j] = add_product<T>(keys.of_rows[p][t], of_state, from_keys[t][j]);
                }
                shared.state.write(16 * j + at.column, State::first_key(at) + 32 * p + 8 * at.quarter,
                                   of_state);
            }
#pragma unroll
        for (int t = 0; t < row_tiles; ++t)
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) shared.from_keys.write(at.wave, t, j, from_keys[t][j]);
        // The compiler omits the wait at the barrier for writes after a branch (racecheck finds this).
        if constexpr (State::waves < scan_waves) kittens::wait_lds<0>();
    }

    KITTENS_DEVICE static void run(const ScanArguments& all, const StateColumns& at, const ChunksOf& chunks,
                                   const Shared& shared) {
        const ChunkArguments& arguments = all.common;
        const int token_row = 16 * at.wave, token = token_row + 4 * at.quarter;
        State state;
        state.load(arguments, all.initial, at);
        if (chunks.count > 0) {
            // The wave's reads for a chunk, issued as soon as those of the previous chunk have been used.
            typename Operands::Keys keys(all, at, chunks);
            ColumnLoads<T> v[column_tiles];
            MatrixRows<T> inverse;
            ChunkOf next = chunks[0];
            WalkedRows<T> values(arguments.v, chunks.span, at.head, arguments.value);
            WalkedPlaces matrices(arguments.matrices, chunks, arguments.matrices_of_chunk * matrix_bytes<T>);
            const auto load_values = [&]() KITTENS_INLINE {
                const kittens::buffer memory = values.memory(static_cast<int32_t>(next.rows.tokens));
#pragma unroll
                for (int j = 0; j < column_tiles; ++j)
                    v[j].load(values, memory, token_row, at.first_column + 16 * j + at.column);
                values.advance();
            };
            const auto load_inverse = [&]() KITTENS_INLINE {
                inverse.load(matrices.memory(next.is_there), ChunkMatrix::inverse, token_row);
                matrices.advance();
            };
            keys.load_ahead(at, chunks.rows_of(0));
            keys.load(all, at, next);
            load_values();
            keys.give(at, shared.keys);
            if constexpr (!Operands::shares_keys) keys.take(at, shared.keys);
            keys.load_ahead(at, chunks.rows_of(1));
            // The V' that is read before the first one exists.
#pragma unroll
            for (int j = 0; j < column_tiles; ++j)
                shared.changes.write(16 * j + at.column, token, four(0.0f));
            four beta, of_keys = 1, of_kept = 1;
            float of_state;
            const auto read_factors = [&]() KITTENS_INLINE {
                beta = shared.factors.read(Factor::beta, token);
                if constexpr (Operands::scales_rows) {
                    of_keys = shared.factors.read(Factor::of_keys, token);
                    of_kept = shared.factors.read(Factor::of_kept, token);
                }
                of_state = shared.factors.read(Factor::of_state, token)[0];
            };
            kittens::barrier();  // for the first chunk's keys and factors
            if constexpr (Operands::shares_keys) keys.take(at, shared.keys);
            read_factors();
            share(state, keys, at, shared);
            kittens::schedule_fence();
            keys.load_kept(all, at, next);
            load_inverse();
            for (int32_t number = 0; number < chunks.count; ++number) {
                const ChunkOf chunk = next;
                next = chunks[number + 1];
                if (__builtin_expect(all.states != nullptr, 0))
                    state.keep(arguments, all.states, chunk.place, at);
                kittens::barrier();  // a

#pragma unroll
                for (int j = 0; j < column_tiles; ++j) {
                    const four from_keys = shared.from_keys.sum(at.wave, j);
                    four rest;
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        rest[e] = beta[e] * __builtin_fmaf(-of_keys[e], from_keys[e],
                                                           static_cast<float>(v[j].element(e)));
                    shared.residual.write(16 * j + at.column, token, rest);
                }
                load_values();
                kittens::schedule_fence();
                kittens::barrier();  // b

                typename Shared::Tokens residual;
                shared.read(shared.residual, at, residual);
                kittens::schedule_fence();
                // While these reads are in flight.
                keys.give(at, shared.keys);
                keys.turn();
                kittens::schedule_fence();
                four changes[column_tiles];
#pragma unroll
                for (int j = 0; j < column_tiles; ++j) {
                    changes[j] = 0;
#pragma unroll
                    for (int s = 0; s < token_steps; ++s)
                        if (token_row >= 32 * s)
                            changes[j] = add_product<T>(inverse.columns[s], residual[j][s], changes[j]);
                    four kept;
#pragma unroll
                    for (int e = 0; e < 4; ++e) kept[e] = changes[j][e] * of_kept[e];
                    shared.kept.write(16 * j + at.column, Operands::kept_column(at), kept);
                    keep_values(arguments, all.changes, chunk.place, at, j, changes[j]);
                }
                kittens::schedule_fence();
                kittens::barrier();  // c

                typename Shared::Tokens kept;
                shared.read(shared.kept, at, kept);
#pragma unroll
                for (int j = 0; j < column_tiles; ++j)
                    shared.changes.write(16 * j + at.column, token, changes[j]);
                if constexpr (!has_large_keys) keys.load(all, at, next);
                keys.take(at, shared.keys);
                keys.load_ahead(at, chunks.rows_of(number + 2));
#pragma unroll
                for (int i = 0; i < 2 * State::pairs; ++i) {
                    // Separately first: a sum that starts from the state would round once per term, each time relative to the state.
                    four added[column_tiles];
#pragma unroll
                    for (int j = 0; j < column_tiles; ++j) {
                        added[j] = 0;
#pragma unroll
                        for (int s = 0; s < token_steps; ++s)
                            added[j] = add_product<T>(keys.kept[i][s], kept[j][s], added[j]);
                    }
                    state.decay_and_add(i, keys.end(i, of_state), added);
                }
                if constexpr (!has_large_keys)
                    load_inverse();
                else {
                    kittens::schedule_fence();
                    keys.load(all, at, next);
                }
                read_factors();
                if constexpr (!has_large_keys) keys.load_kept(all, at, next);
                share(state, keys, at, shared);
                if constexpr (has_large_keys) {
                    kittens::schedule_fence();
                    keys.load_kept(all, at, next);
                    load_inverse();
                }
            }
            kittens::barrier();  // a
        }
        state.store(arguments, all.final, at.sequence, at);
    }
};

}  // namespace hipkittens::delta_rule
