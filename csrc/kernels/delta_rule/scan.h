// kernels/delta_rule/scan.h: a gated delta rule chunk after chunk, with the state in accumulators.
// SPDX-License-Identifier: MIT
#pragma once
#include "chunk.h"

namespace hipkittens::delta_rule {

// A workgroup takes `columns` of a state through all chunks of its sequence; wave w has rows 16 w .. of a chunk, and a quarter of
// the keys. With S before the chunk, gamma the rows' log_decay and gamma_C that of the last one:
//     V' = T (beta (V - e^gamma K S)),  O = scale (e^gamma Q S + P V'),  S <- e^gamma_C S + K^T (e^(gamma_C - gamma) V')
// (S. Yang and others, Parallelizing Linear Transformers with the Delta Rule over Sequence Length, 2024, with decays.) Q and K are
// operands as they are; what is a float, S, V', T and P, is the sum of two of their type. A product of two sums leaves out that of
// the two rests.
template <ScanConfig config>
struct Scan {
    using T = typename element_of<config.element>::value;
    using fragment = kittens::vec<T, 8>;
    static constexpr int waves = 4, threads = 64 * waves, waves_per_simd = 1;
    static constexpr int key_steps = config.key / 32, token_steps = chunk_tokens / 32;
    static constexpr int key_tiles = config.key / 16 / waves, column_tiles = config.columns / 16;

    using OfKeys = SharedRows<T, config.key>;
    using OfTokens = SharedRows<T, chunk_tokens>;
    static constexpr int state_bytes = config.columns * OfKeys::bytes_of_row,
                         values_bytes = config.columns * OfTokens::bytes_of_row,
                         keys_bytes = config.key * OfTokens::bytes_of_row,
                         lds_bytes = 2 * state_bytes + 6 * values_bytes + keys_bytes;

    // A chunk's part of what the wave reads from memory.
    struct Loads {
        fragment q[key_steps], k[key_steps];
        fragment inverse[2][token_steps], scores[2][token_steps];
        fragment pair[key_tiles][2];  // of K: 8 columns of two neighbouring tokens
        T v[column_tiles][4];
        four own, of_rows[4];
        float last;
    };

    struct Place {
        uint32_t number, head, key_head, first_column;
        int lane, column, quarter, wave;
    };

    KITTENS_DEVICE static void load(Loads& loads, const ScanArguments& arguments, const Place& at,
                                    const Span& rows, uint32_t chunk) {
        const HeadView<T> q(arguments.q, rows, at.key_head), k(arguments.k, rows, at.key_head),
            v(arguments.v, rows, at.head);
        const uint32_t row = 16 * at.wave + at.column;
#pragma unroll
        for (int s = 0; s < key_steps; ++s) {
            const uint32_t column = 32 * s + 8 * at.quarter;
            const bool is_there = row < rows.tokens && column < arguments.key;
            loads.k[s] = kittens::buffer_load<fragment>(k.memory, k.offset(row, column, is_there));
            loads.q[s] = kittens::buffer_load<fragment>(q.memory, q.offset(row, column, is_there));
        }
        const int64_t place = static_cast<int64_t>(chunk) * arguments.heads.value + at.head;
        auto* matrices =
            (global<const T>)arguments.matrices + place * matrices_of_chunk * chunk_tokens * chunk_tokens;
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int s = 0; s < token_steps; ++s) {
                auto* from = matrices + row * chunk_tokens + 32 * s + 8 * at.quarter;
                loads.inverse[n][s] = *(global<const fragment>)(from + n * chunk_tokens * chunk_tokens);
                loads.scores[n][s] = *(global<const fragment>)(from + (2 + n) * chunk_tokens * chunk_tokens);
            }
        const uint32_t thread = 64 * at.wave + at.lane, pair = thread % 32, group = thread / 32;
#pragma unroll
        for (int n = 0; n < key_tiles; ++n)
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const uint32_t token = 2 * pair + side, column = 8 * (group + 8 * n);
                loads.pair[n][side] = kittens::buffer_load<fragment>(
                    k.memory, k.offset(token, column, token < rows.tokens && column < arguments.key));
            }
#pragma unroll
        for (int j = 0; j < column_tiles; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const uint32_t token = 16 * at.wave + 4 * at.quarter + e,
                               column = at.first_column + 16 * j + at.column;
                loads.v[j][e] = kittens::buffer_load<T>(
                    v.memory, v.offset(token, column, token < rows.tokens && column < arguments.value));
            }
        auto* factors = (global<const four>)arguments.factors + place * chunk_tokens;
        loads.own = factors[row];
#pragma unroll
        for (int e = 0; e < 4; ++e) loads.of_rows[e] = factors[16 * at.wave + 4 * at.quarter + e];
        loads.last = factors[chunk_tokens - 1][0];
    }

    // The four elements of each base tile of a wave's part of the state: keys .. + 3 of one column.
    template <class Visit>
    KITTENS_DEVICE static void each_element(const ScanArguments& arguments, const States& states,
                                            const Place& at, uint32_t sequence, const Visit& visit) {
        auto* base = (global<float>)states.data + sequence * states.slot + at.head * states.head;
#pragma unroll
        for (int i = 0; i < key_tiles; ++i)
#pragma unroll
            for (int j = 0; j < column_tiles; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const uint32_t key = 16 * (key_tiles * at.wave + i) + 4 * at.quarter + e,
                                   value = at.first_column + 16 * j + at.column;
                    if (key < arguments.key && value < arguments.value)
                        visit(base + key * states.key + value * states.value, i, j, e);
                }
    }

    KITTENS_DEVICE static void run(const ScanArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t of_slices = arguments.slices.quotient(kittens::workgroup_id_x()),
                       sequence = arguments.heads.quotient(of_slices),
                       head = of_slices - sequence * arguments.heads.value;
        const int lane = kittens::lane_id();
        const Place at{first_chunk(arguments.chunks, sequence),
                       head,
                       arguments.group.quotient(head),
                       (kittens::workgroup_id_x() - of_slices * arguments.slices.value) * config.columns,
                       lane,
                       lane % 16,
                       lane / 16,
                       kittens::wave_id()};
        const Span span = span_of(arguments.chunks.sequences, sequence);
        const uint32_t chunks = static_cast<uint32_t>((span.tokens + chunk_tokens - 1) / chunk_tokens);

        const OfKeys state_high{lds}, state_low{lds + state_bytes};
        auto* behind = lds + 2 * state_bytes;
        const OfTokens residual[2] = {{behind}, {behind + values_bytes}},
                       updates[2] = {{behind + 2 * values_bytes}, {behind + 3 * values_bytes}},
                       kept_updates[2] = {{behind + 4 * values_bytes}, {behind + 5 * values_bytes}},
                       keys{behind + 6 * values_bytes};

        four state[key_tiles][column_tiles];
#pragma unroll
        for (int i = 0; i < key_tiles; ++i)
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) state[i][j] = 0;
        if (arguments.initial.data)
            each_element(arguments, arguments.initial, at, sequence,
                         [&](global<float> element, int i, int j, int e) { state[i][j][e] = *element; });

        const auto rows_of = [&](uint32_t chunk) {
            Span rows{span.sequence, span.first + static_cast<int64_t>(chunk) * chunk_tokens,
                      span.tokens - static_cast<int64_t>(chunk) * chunk_tokens};
            if (rows.tokens > chunk_tokens) rows.tokens = chunk_tokens;
            return rows;
        };
        const int key_row = 16 * key_tiles * at.wave, token_row = 16 * at.wave;
        const auto write = [&](const OfTokens(&to)[2], int column_tile, four values) {
            const Halves<T> halves(values);
            kittens::lds_write(halves.high, to[0].at(16 * column_tile + at.column, token_row + 4 * at.quarter));
            kittens::lds_write(halves.low, to[1].at(16 * column_tile + at.column, token_row + 4 * at.quarter));
        };

        Loads next;
        if (chunks) load(next, arguments, at, rows_of(0), at.number);
        for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
            const Loads loads = next;
            const Span rows = rows_of(chunk);
#pragma unroll
            for (int i = 0; i < key_tiles; ++i)
#pragma unroll
                for (int j = 0; j < column_tiles; ++j) {
                    const Halves<T> halves(state[i][j]);
                    const int row = 16 * j + at.column, column = key_row + 16 * i + 4 * at.quarter;
                    kittens::lds_write(halves.high, state_high.at(row, column));
                    kittens::lds_write(halves.low, state_low.at(row, column));
                }
            if (chunk + 1 < chunks) load(next, arguments, at, rows_of(chunk + 1), at.number + chunk + 1);
            kittens::barrier();

            four from_keys[column_tiles], result[column_tiles];
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) from_keys[j] = result[j] = 0;
#pragma unroll
            for (int s = 0; s < key_steps; ++s)
#pragma unroll
                for (int j = 0; j < column_tiles; ++j) {
                    const int row = 16 * j + at.column, column = 32 * s + 8 * at.quarter;
                    const fragment high = state_high.fragment(row, column),
                                   low = state_low.fragment(row, column);
                    from_keys[j] = kittens::matrix_16x16(loads.k[s], high, from_keys[j]);
                    from_keys[j] = kittens::matrix_16x16(loads.k[s], low, from_keys[j]);
                    result[j] = kittens::matrix_16x16(high, loads.q[s], result[j]);
                    result[j] = kittens::matrix_16x16(low, loads.q[s], result[j]);
                }
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) {
                four rest;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const four factors = loads.of_rows[e];
                    rest[e] = factors[1] * __builtin_fmaf(-decay(factors[0]) * factors[2], from_keys[j][e],
                                                          static_cast<float>(loads.v[j][e]));
                }
                write(residual, j, rest);
            }
            // K^T, for the state: the barrier before has ended the last chunk's reads of it.
#pragma unroll
            for (int n = 0; n < key_tiles; ++n)
#pragma unroll
                for (int e = 0; e < 8; ++e) {
                    const int thread = 64 * at.wave + at.lane, pair = thread % 32, group = thread / 32;
                    const kittens::vec<T, 2> tokens = {loads.pair[n][0][e], loads.pair[n][1][e]};
                    kittens::lds_write(tokens, keys.at(8 * (group + 8 * n) + e, 2 * pair));
                }
            kittens::barrier();

            four change[column_tiles];
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) {
                change[j] = 0;
#pragma unroll
                for (int s = 0; s < token_steps; ++s) {
                    const int row = 16 * j + at.column, column = 32 * s + 8 * at.quarter;
                    const fragment high = residual[0].fragment(row, column),
                                   low = residual[1].fragment(row, column);
                    change[j] = kittens::matrix_16x16(loads.inverse[1][s], high, change[j]);
                    change[j] = kittens::matrix_16x16(loads.inverse[0][s], low, change[j]);
                    change[j] = kittens::matrix_16x16(loads.inverse[0][s], high, change[j]);
                }
                four kept;
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    kept[e] = change[j][e] * decay(loads.last - loads.of_rows[e][0]) * loads.of_rows[e][2];
                write(updates, j, change[j]);
                write(kept_updates, j, kept);
            }
            kittens::barrier();

            const HeadView<T> out(arguments.out, rows, at.head);
            const float from_state = decay(loads.own[0]) * loads.own[3], last = decay(loads.last);
#pragma unroll
            for (int j = 0; j < column_tiles; ++j) {
                result[j] *= from_state;
#pragma unroll
                for (int s = 0; s < token_steps; ++s) {
                    const int row = 16 * j + at.column, column = 32 * s + 8 * at.quarter;
                    const fragment high = updates[0].fragment(row, column),
                                   low = updates[1].fragment(row, column);
                    result[j] = kittens::matrix_16x16(high, loads.scores[1][s], result[j]);
                    result[j] = kittens::matrix_16x16(low, loads.scores[0][s], result[j]);
                    result[j] = kittens::matrix_16x16(high, loads.scores[0][s], result[j]);
                }
                const uint32_t row = token_row + at.column,
                               column = at.first_column + 16 * j + 4 * at.quarter;
                kittens::buffer_store(
                    kittens::narrowed<T, 4>(result[j] * arguments.scale), out.memory,
                    out.offset(row, column, row < rows.tokens && column < arguments.value));
            }
#pragma unroll
            for (int i = 0; i < key_tiles; ++i)
#pragma unroll
                for (int j = 0; j < column_tiles; ++j) {
                    state[i][j] *= last;
#pragma unroll
                    for (int s = 0; s < token_steps; ++s) {
                        const int row = 16 * j + at.column, column = 32 * s + 8 * at.quarter;
                        const fragment transposed = keys.fragment(key_row + 16 * i + at.column, column);
                        state[i][j] = kittens::matrix_16x16(transposed, kept_updates[1].fragment(row, column),
                                                            state[i][j]);
                        state[i][j] = kittens::matrix_16x16(transposed, kept_updates[0].fragment(row, column),
                                                            state[i][j]);
                    }
                }
        }
        if (arguments.final.data)
            each_element(arguments, arguments.final, at, sequence,
                         [&](global<float> element, int i, int j, int e) { *element = state[i][j][e]; });
    }
};

}  // namespace hipkittens::delta_rule
