// kernels/delta_rule/gradient.h: the gradients of a chunk's queries, keys, decays and rates.
// SPDX-License-Identifier: MIT
#pragma once
#include "prepare.h"

namespace hipkittens::delta_rule {

// With the notation of Scan and Reverse, q and k as unit vectors if they are normalized, E_ij = e^(gamma_i - gamma_j) for i >= j,
// e = e^gamma, l = e^(gamma_C - gamma), and from Y = T^T dV', dW = -dV' S^T and V' = T (beta V) - W S:
//     Z = scale tril(dO V'^T) E,  N = -tril_strict(Y V'^T) E,  X = -Y S^T,  U = N K,  R = (beta N)^T K
//     dQ = scale e (dO S^T) + Z K,  dK = Z^T Q + l (V' dS^T) + beta e X + beta U + R
//     dbeta = e (X . K) + Y . V + U . K
//     dgamma = Q . dQ - K . (Z^T Q + l (V' dS^T)) + beta e (X . K) + beta (U . K) - R . K
// where . is the sum over a row. The last row's dgamma also has e_C <S, dS> + sum K . l (V' dS^T), and dg is the sum of dgamma
// from its row on. One workgroup per chunk of one value head; in an accumulator, a lane has four adjacent elements
// of row 16 w + lane % 16.
template <PrepareConfig config>
struct Gradient {
    using T = typename element_of<config.element>::value;
    static constexpr int waves = 4, threads = 64 * waves, waves_per_simd = 1;
    static constexpr int row_tiles = chunk_tokens / 16, key_tiles = config.key / 16,
                         key_steps = config.key / 32, token_steps = chunk_tokens / 32;
    using Scores = SharedSums<T, chunk_tokens, chunk_tokens>;
    using Transposed = SharedRows<T, chunk_tokens>;
    static constexpr int lds_bytes = 2 * Scores::bytes + config.key * Transposed::bytes_of_row;

    // Eight adjacent elements of a row of floats, as a sum.
    KITTENS_DEVICE static kittens::eight load_floats(kittens::buffer memory, uint32_t element,
                                                     bool is_there) {
        return kittens::widened(kittens::load_raw_at<float>(memory, is_there ? element * 4 : ~uint32_t{255}));
    }
    KITTENS_DEVICE static float dot(four a, four b, float sum) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum = __builtin_fmaf(a[e], b[e], sum);
        return sum;
    }

    KITTENS_DEVICE static void run(const GradientArguments& all, kittens::shared_byte* lds) {
        const ChunkArguments& arguments = all.common;
        const uint32_t number = arguments.heads.quotient(kittens::workgroup_id_x()),
                       head = kittens::workgroup_id_x() - number * arguments.heads.value,
                       key_head = arguments.group.quotient(head), place = kittens::workgroup_id_x();
        const Span rows = rows_of_chunk(arguments.chunks, number);
        if (rows.tokens <= 0) return;
        const int lane = kittens::lane_id(), column = lane % 16, quarter = lane / 16,
                  wave = kittens::wave_id(), row = 16 * wave + column;
        const bool row_is_there = row < rows.tokens;

        // Sums over values.
        four of_scores[row_tiles], of_system[row_tiles];
        four query[key_tiles], key[key_tiles], solved[key_tiles];
#pragma unroll
        for (int j = 0; j < row_tiles; ++j) of_scores[j] = of_system[j] = 0;
#pragma unroll
        for (int t = 0; t < key_tiles; ++t) query[t] = key[t] = solved[t] = 0;
        float of_values = 0, of_states = 0;
        {
            const HeadView<T> v(arguments.v, rows, head), dout(all.dout, rows, head);
            const int64_t state_elements = static_cast<int64_t>(arguments.key) * arguments.value,
                          row_elements = static_cast<int64_t>(chunk_tokens) * arguments.value;
            const auto memory = [&](const float* of, int64_t elements) {
                return kittens::buffer{(const char*)(of + place * elements),
                                       static_cast<uint32_t>(elements * 4)};
            };
            const kittens::buffer states = memory(all.states, state_elements),
                                  dstates = memory(all.dstates, state_elements),
                                  changes = memory(all.changes, row_elements),
                                  y = memory(all.solved, row_elements);
            for (uint32_t first = 0; first < arguments.value; first += 32) {
                const uint32_t at = first + 8 * quarter;
                const bool is_there = at < arguments.value;
                const fragment<T> own_dout =
                    load_fragment<T>(dout.memory, dout.offset(row, at, is_there && row_is_there));
                const fragment<T> own_v =
                    load_fragment<T>(v.memory, v.offset(row, at, is_there && row_is_there));
                const kittens::eight wide_y = load_floats(y, row * arguments.value + at, is_there);
                const Sum<T, 8> own_y(wide_y),
                    own_change(load_floats(changes, row * arguments.value + at, is_there));
#pragma unroll
                for (int e = 0; e < 8; ++e)
                    of_values = __builtin_fmaf(wide_y[e], static_cast<float>(own_v[e]), of_values);
#pragma unroll
                for (int j = 0; j < row_tiles; ++j) {
                    const Sum<T, 8> change(
                        load_floats(changes, (16 * j + column) * arguments.value + at, is_there));
                    of_scores[j] = add_product<T>(change, own_dout, of_scores[j]);
                    of_system[j] = add_product<T>(change, own_y, of_system[j]);
                }
#pragma unroll
                for (int t = 0; t < key_tiles; ++t) {
                    const uint32_t k = 16 * t + column;
                    const bool key_is_there = is_there && k < arguments.key;
                    const kittens::eight wide = load_floats(states, k * arguments.value + at, key_is_there),
                                         dwide = load_floats(dstates, k * arguments.value + at, key_is_there);
                    const Sum<T, 8> state(wide), dstate(dwide);
                    query[t] = add_product<T>(state, own_dout, query[t]);
                    solved[t] = add_product<T>(state, own_y, solved[t]);
                    key[t] = add_product<T>(dstate, own_change, key[t]);
                    // Executed by all waves: after a branch, the compiler would count too few wait states for the
                    // products before it (synccheck finds this).
#pragma unroll
                    for (int e = 0; e < 8; ++e) of_states = __builtin_fmaf(wide[e], dwide[e], of_states);
                }
            }
        }

        auto* factors = (global<const four>)arguments.factors + static_cast<int64_t>(place) * chunk_tokens;
        const four own = factors[row];
        const float last = factors[chunk_tokens - 1][0], beta = own[1], of_key = own[2], of_query = own[3],
                    kept = decay(own[0]), left = decay(last - own[0]);
#pragma unroll
        for (int j = 0; j < row_tiles; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int other = 16 * j + 4 * quarter + e;
                const float between = other <= row ? decay(own[0] - factors[other][0]) : 0.0f;
                of_scores[j][e] = other <= row ? arguments.scale * between * of_scores[j][e] : 0.0f;
                of_system[j][e] = other < row ? -between * of_system[j][e] : 0.0f;
            }

        // Sums over tokens.
        const Scores scores{lds}, system{lds + Scores::bytes};
        const Transposed turned{lds + 2 * Scores::bytes};
        const HeadView<T> q(arguments.q, rows, key_head), k(arguments.k, rows, key_head);
        const auto turn = [&](const HeadView<T>& view) KITTENS_INLINE {
#pragma unroll
            for (int s = 0; s < key_steps; ++s) {
                const uint32_t at = 32 * s + 8 * quarter;
                turned.write_transposed(
                    row, at,
                    load_fragment<T>(view.memory, view.offset(row, at, row_is_there && at < arguments.key)));
            }
        };
        const auto add_rows = [&](four(&to)[key_tiles], const Scores& of) KITTENS_INLINE {
#pragma unroll
            for (int s = 0; s < token_steps; ++s) {
                const Sum<T, 8> own_row = of.read(row, 32 * s + 8 * quarter);
#pragma unroll
                for (int t = 0; t < key_tiles; ++t)
                    to[t] =
                        add_product<T>(turned.read(16 * t + column, 32 * s + 8 * quarter), own_row, to[t]);
            }
        };
#pragma unroll
        for (int j = 0; j < row_tiles; ++j) {
            four of_others;
#pragma unroll
            for (int e = 0; e < 4; ++e) of_others[e] = factors[16 * j + 4 * quarter + e][2];
            scores.write(row, 16 * j + 4 * quarter, of_scores[j] * of_others);
            system.write(row, 16 * j + 4 * quarter, of_system[j] * of_others);
        }
        turn(k);
        kittens::barrier();
        const auto load_four = [&](const HeadView<T>& view, int t, float factor) KITTENS_INLINE {
            const uint32_t at = 16 * t + 4 * quarter;
            return __builtin_convertvector(
                       kittens::buffer_load<kittens::vec<T, 4>>(
                           view.memory, view.offset(row, at, row_is_there && at < arguments.key)),
                       four) *
                   factor;
        };
        const auto sum_with = [&](const HeadView<T>& view, float factor, const four(&of)[key_tiles])
                                  KITTENS_INLINE {
                                      float sum = 0;
#pragma unroll
                                      for (int t = 0; t < key_tiles; ++t)
                                          sum = dot(load_four(view, t, factor), of[t], sum);
                                      return sum_of_quarters(sum);
                                  };
        // of: the gradient with respect to a row of unit vectors; `sum`: its dot product with that row.
        const auto store_as = [&](auto type, const TokenHeads& to, const HeadView<T>& view, float factor,
                                  const four(&of)[key_tiles], float sum) KITTENS_INLINE {
            using Result = decltype(type);
            const HeadView<Result> result(to, rows, head);
#pragma unroll
            for (int t = 0; t < key_tiles; ++t) {
                const uint32_t at = 16 * t + 4 * quarter;
                four values = of[t];
                // The gradient of x / sqrt(sum of x^2 + epsilon).
                if (all.normalize) values = (values - load_four(view, t, factor) * sum) * factor;
                kittens::buffer_store(kittens::narrowed<Result, 4>(values), result.memory,
                                      result.offset(row, at, row_is_there && at < arguments.key));
            }
        };
        const auto store = [&](const TokenHeads& to, const HeadView<T>& view, float factor,
                               const four(&of)[key_tiles], float sum) KITTENS_INLINE {
            if (all.wide)
                store_as(float(), to, view, factor, of, sum);
            else
                store_as(T(), to, view, factor, of, sum);
        };
        // Finished results leave their registers before the next sums use them.
        four rest[key_tiles];
#pragma unroll
        for (int t = 0; t < key_tiles; ++t) {
            query[t] *= arguments.scale * kept;
            rest[t] = 0;
        }
        add_rows(query, scores);
        const float query_sum = sum_with(q, of_query, query);
        store(all.dq, q, of_query, query, query_sum);
        add_rows(rest, system);
        const float correction_sum = sum_with(k, of_key, rest), solved_sum = -sum_with(k, of_key, solved);
#pragma unroll
        for (int t = 0; t < key_tiles; ++t) rest[t] = (rest[t] - solved[t] * kept) * beta;
        kittens::barrier();
#pragma unroll
        for (int j = 0; j < row_tiles; ++j) {
            scores.write_transposed(16 * j + 4 * quarter, row, of_scores[j] * of_query);
            system.write_transposed(16 * j + 4 * quarter, row, of_system[j] * (beta * of_key));
        }
        kittens::barrier();
        float opposite_sum;
        {
            four opposite[key_tiles];
#pragma unroll
            for (int t = 0; t < key_tiles; ++t) opposite[t] = 0;
            add_rows(opposite, system);
            opposite_sum = sum_with(k, of_key, opposite);
#pragma unroll
            for (int t = 0; t < key_tiles; ++t) rest[t] += opposite[t];
        }
        kittens::barrier();
        turn(q);
        kittens::barrier();
        // The keys: first the part that is affected by the decay of the state after the chunk.
        float of_last = 0;
#pragma unroll
        for (int t = 0; t < key_tiles; ++t) {
            key[t] *= left;
            of_last = dot(load_four(k, t, of_key), key[t], of_last);
        }
        add_rows(key, scores);
        const float key_sum = sum_with(k, of_key, key);
#pragma unroll
        for (int t = 0; t < key_tiles; ++t) key[t] += rest[t];
        store(all.dk, k, of_key, key, sum_with(k, of_key, key));
        of_values = sum_of_quarters(of_values);

        const auto scalar = [&](const TokenHeads& to, int token) KITTENS_INLINE {
            return (global<float>)to.data + rows.sequence * to.sequence + (rows.first + token) * to.token +
                   head * to.head;
        };
        if (quarter == 0 && row_is_there)
            *scalar(all.dbeta, row) = kept * solved_sum + of_values + correction_sum;
        const float dgamma =
            query_sum - key_sum + beta * kept * solved_sum + beta * correction_sum - opposite_sum;

        // Per-wave values, stored in the space of the scores.
        kittens::barrier();
        if (quarter == 0) kittens::lds_write(dgamma, lds + row * 4);
        of_last = kittens::sum_of_lanes(of_last);
        of_states = kittens::sum_of_lanes(of_states);
        if (lane == 0)
            kittens::lds_write(wave == 0 ? __builtin_fmaf(decay(last), of_states, of_last) : of_last,
                               lds + (chunk_tokens + wave) * 4);
        kittens::barrier();
        if (wave != 0) return;
        float sum = kittens::lds_read<float>(lds + lane * 4);
        if (lane == rows.tokens - 1) {
            const four rest = kittens::lds_read<four>(lds + chunk_tokens * 4);
            sum += rest[0] + rest[1] + rest[2] + rest[3];
        }
        if (lane >= rows.tokens) sum = 0;
#pragma unroll
        for (int distance = 1; distance < 64; distance *= 2) {
            const float behind = kittens::read_lane(sum, lane + distance);
            sum += lane + distance < 64 ? behind : 0.0f;
        }
        if (lane < rows.tokens) *scalar(all.dg, lane) = sum;
    }
};

}  // namespace hipkittens::delta_rule
