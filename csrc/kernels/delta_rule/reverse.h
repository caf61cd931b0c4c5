// kernels/delta_rule/reverse.h: the gradient of the state, from the last chunk back.
// SPDX-License-Identifier: MIT
#pragma once
#include "state_columns.h"

namespace hipkittens::delta_rule {

// With dS after the chunk, and the notation of Scan:
//     dV' = scale P^T dO + e^(gamma_C - gamma) K dS,  Y = T^T dV',  dV = beta Y
//     dS <- e^gamma_C dS + Q^T (scale e^gamma dO) - K^T (beta e^gamma Y)
template <ScanConfig config>
struct Reverse {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = reverse_threads, waves_per_simd = 1;
    static constexpr int key_steps = config.key / 32, token_steps = chunk_tokens / 32;
    using KeysOfWave = QuarterOfKeys<config.key>;
    using State = StateTiles<KeysOfWave, config.columns>;
    static constexpr int column_tiles = State::column_tiles;

    using OfKeys = SharedSums<T, config.columns, config.key>;
    using OfTokens = SharedSums<T, config.columns, chunk_tokens>;
    using Transposed = SharedRows<T, chunk_tokens>;
    // Queries and keys alternate in one space.
    static constexpr int lds_bytes = OfKeys::bytes + 3 * OfTokens::bytes +
                                     config.columns * Transposed::bytes_of_row +
                                     config.key * Transposed::bytes_of_row;

    struct Inputs {
        fragment<T> q[key_steps], k[key_steps];
        ColumnLoads<T> dout[column_tiles];

        KITTENS_DEVICE void load(const ReverseArguments& all, const StateColumns& at, const ChunkOf& chunk) {
            load_rows<T>(k, all.common.k, all.common, at, chunk.rows);
            load_rows<T>(q, all.common.q, all.common, at, chunk.rows);
            load_columns<T>(dout, all.dout, all.common, at, chunk.rows);
        }
    };

    KITTENS_DEVICE static void run(const ReverseArguments& all, kittens::shared_byte* lds) {
        const ChunkArguments& arguments = all.common;
        const StateColumns at(arguments, all.slices, all.xcds, config.columns);
        const ChunksOf chunks(arguments, at);

        const OfKeys shared_state{lds};
        auto* behind = lds + OfKeys::bytes;
        const OfTokens scaled{behind}, changes{behind + OfTokens::bytes},
            solved{behind + 2 * OfTokens::bytes};
        const Transposed gradient{behind + 3 * OfTokens::bytes},
            turned{behind + 3 * OfTokens::bytes + config.columns * Transposed::bytes_of_row};
        const int key_row = KeysOfWave::key_row(at), token_row = 16 * at.wave,
                  token = token_row + 4 * at.quarter;

        State state;
        state.load(arguments, all.final, at);
        Inputs inputs;
        MatrixRows<T> inverse, scores;
        LaneFactors next_factors;
        ChunkOf next = chunks[chunks.count - 1];
        const auto load_matrix = [&](MatrixRows<T>& matrix, ChunkMatrix which) KITTENS_INLINE {
            const uint32_t bytes = arguments.matrices_of_chunk * matrix_bytes<T>;
            matrix.load({(const char*)arguments.matrices + static_cast<int64_t>(next.place) * bytes,
                         next.is_there ? bytes : 0},
                        which, token_row);
        };
        // Adds `turned` (queries or keys) times columns of tokens to `kept` times the state. Separate sums round less often than sums
        // that start from the state.
        const auto add_to_state = [&](const OfTokens& columns, float kept) KITTENS_INLINE {
#pragma unroll
            for (int i = 0; i < State::key_tiles; ++i) {
                four added[column_tiles];
#pragma unroll
                for (int j = 0; j < column_tiles; ++j) added[j] = 0;
#pragma unroll
                for (int s = 0; s < token_steps; ++s) {
                    const fragment<T> left =
                        turned.read(key_row + 16 * i + at.column, 32 * s + 8 * at.quarter);
#pragma unroll
                    for (int j = 0; j < column_tiles; ++j)
                        added[j] = add_product<T>(
                            left, columns.read(16 * j + at.column, 32 * s + 8 * at.quarter), added[j]);
                }
                state.decay_and_add(i, kept, added);
            }
        };
        inputs.load(all, at, next);
        load_matrix(inverse, ChunkMatrix::inverse_transposed);
        load_matrix(scores, ChunkMatrix::scores_transposed);
        next_factors.load(arguments.factors, next.place, next.is_there, token_row);
        for (int32_t number = chunks.count - 1; number >= 0; --number) {
            const LaneFactors factors = next_factors;
            const ChunkOf chunk = next;
            next = chunks[number - 1];
            state.keep(arguments, all.dstates, chunk.place, at);
#pragma unroll
            for (int i = 0; i < State::key_tiles; ++i)
#pragma unroll
                for (int j = 0; j < column_tiles; ++j)
                    shared_state.write(16 * j + at.column, key_row + 16 * i + 4 * at.quarter,
                                       state.tiles[i][j]);
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) {
                kittens::vec<T, 4> elements;
                four values;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const four row = factors.of_rows[e];
                    elements[e] = inputs.dout[j].element(e);
                    values[e] = static_cast<float>(elements[e]) * arguments.scale * decay(row[0]) * row[3];
                }
                gradient.write(16 * j + at.column, token, elements);
                scaled.write(16 * j + at.column, token, values);
            }
#pragma unroll
            for (int s = 0; s < key_steps; ++s)
                turned.write_transposed(token_row + at.column, 32 * s + 8 * at.quarter, inputs.q[s]);
            next_factors.load(arguments.factors, next.place, next.is_there, token_row);
            kittens::barrier();

#pragma unroll
            for (int j = 0; j < column_tiles; ++j) {
                four from_state = 0, change = 0;
#pragma unroll
                for (int s = 0; s < key_steps; ++s)
                    from_state = add_product<T>(
                        inputs.k[s], shared_state.read(16 * j + at.column, 32 * s + 8 * at.quarter),
                        from_state);
#pragma unroll
                for (int s = 0; s < token_steps; ++s)
                    change =
                        add_product<T>(scores.columns[s],
                                       gradient.read(16 * j + at.column, 32 * s + 8 * at.quarter), change);
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    change[e] = __builtin_fmaf(
                        arguments.scale, change[e],
                        decay(factors.last - factors.of_rows[e][0]) * factors.of_rows[e][2] * from_state[e]);
                changes.write(16 * j + at.column, token, change);
            }
            add_to_state(scaled, decay(factors.last));
            load_matrix(scores, ChunkMatrix::scores_transposed);
            kittens::barrier();

#pragma unroll
            for (int s = 0; s < key_steps; ++s)
                turned.write_transposed(token_row + at.column, 32 * s + 8 * at.quarter, inputs.k[s]);
            inputs.load(all, at, next);
            const HeadView<T> dv(all.dv, chunk.rows, at.head);
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) {
                four y = 0, back;
#pragma unroll
                for (int s = 0; s < token_steps; ++s)
                    y = add_product<T>(inverse.columns[s],
                                       changes.read(16 * j + at.column, 32 * s + 8 * at.quarter), y);
                const uint32_t column = at.first_column + 16 * j + at.column;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const four row = factors.of_rows[e];
                    const float of_value = row[1] * y[e];
                    back[e] = -of_value * decay(row[0]) * row[2];
                    kittens::buffer_store(
                        static_cast<T>(of_value), dv.memory,
                        dv.offset(token + e, column,
                                  token + e < chunk.rows.tokens && column < arguments.value));
                }
                solved.write(16 * j + at.column, token, back);
                keep_values(arguments, all.solved, chunk.place, at, j, y);
            }
            load_matrix(inverse, ChunkMatrix::inverse_transposed);
            kittens::barrier();

            add_to_state(solved, 1.0f);
            // Before the next chunk's queries overwrite these keys.
            kittens::barrier();
        }
        state.store(arguments, all.initial, at.sequence, at);
    }
};

}  // namespace hipkittens::delta_rule
