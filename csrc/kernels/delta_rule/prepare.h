// kernels/delta_rule/prepare.h: the state-independent part of a chunk: decays, the inverse of its system, its scores.
// SPDX-License-Identifier: MIT
#pragma once
#include "chunk_inverse.h"
#include "logarithm_parts.h"

namespace hipkittens::delta_rule {

// The sum over the lanes up to this one.
KITTENS_DEVICE float sum_so_far(float value) {
    const int lane = kittens::lane_id();
#pragma unroll
    for (int distance = 1; distance < 64; distance *= 2) {
        const float before = kittens::read_lane(value, lane - distance);
        value += lane >= distance ? before : 0.0f;
    }
    return value;
}

// The index of a base tile on or below the diagonal.
KITTENS_DEVICE constexpr int lower(int i, int j) { return i * (i + 1) / 2 + j; }

// One wave per chunk of one value head. In base tile (i, j), a lane has row 16 i + lane % 16 and columns
// 16 j + 4 (lane / 16) .. + 3.
template <PrepareConfig config>
struct Prepare {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = 64, waves_per_simd = 1;
    static constexpr int tiles = system_tiles, lower_tiles = lower(tiles, 0);
    static constexpr int factor_bytes = chunk_tokens * static_cast<int>(sizeof(RowFactors)),
                         lds_bytes = factor_bytes + system_bytes;

    KITTENS_DEVICE static void run(const PrepareArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t number = arguments.heads.quotient(kittens::workgroup_id_x()),
                       head = kittens::workgroup_id_x() - number * arguments.heads.value,
                       key_head = arguments.group.quotient(head);
        const Span rows = rows_of_chunk(arguments.chunks, number);
        if (rows.tokens <= 0) return;
        const int lane = kittens::lane_id(), column = lane % 16, quarter = lane / 16;
        const HeadView<T> q(arguments.q, rows, key_head), k(arguments.k, rows, key_head);

        // K K^T and Q K^T of the unscaled elements: products of 16-bit values are exact.
        four of_keys[lower_tiles], of_queries[lower_tiles];
#pragma unroll
        for (int n = 0; n < lower_tiles; ++n) of_keys[n] = of_queries[n] = 0;
        float square_k[tiles] = {}, square_q[tiles] = {};
        fragment<T> next_keys[tiles], next_queries[tiles];
        const auto load = [&](uint32_t first) KITTENS_INLINE {
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                const uint32_t row = 16 * i + column, at = first + 8 * quarter;
                const bool is_there = row < rows.tokens && at < arguments.key;
                next_keys[i] = load_fragment<T>(k.memory, k.offset(row, at, is_there));
                next_queries[i] = load_fragment<T>(q.memory, q.offset(row, at, is_there));
            }
        };
        load(0);
        for (uint32_t first = 0; first < arguments.key; first += 32) {
            fragment<T> keys[tiles], queries[tiles];
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                keys[i] = next_keys[i];
                queries[i] = next_queries[i];
            }
            load(first + 32);
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
#pragma unroll
                for (int e = 0; e < 8; ++e) {
                    const float key = static_cast<float>(keys[i][e]),
                                query = static_cast<float>(queries[i][e]);
                    square_k[i] = __builtin_fmaf(key, key, square_k[i]);
                    square_q[i] = __builtin_fmaf(query, query, square_q[i]);
                }
#pragma unroll
                for (int j = 0; j <= i; ++j) {
                    of_keys[lower(i, j)] = add_product<T>(keys[j], keys[i], of_keys[lower(i, j)]);
                    of_queries[lower(i, j)] = add_product<T>(keys[j], queries[i], of_queries[lower(i, j)]);
                }
            }
        }

        const auto factor = [=](int row, int field) {
            return lds + row * static_cast<int>(sizeof(RowFactors)) + field * 4;
        };
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
            const float sums[2] = {square_k[i], square_q[i]};
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const float inverse =
                    kittens::hardware_reciprocal_square_root(sum_of_quarters(sums[n]) + 1e-6f);
                if (quarter == 0)
                    kittens::lds_write(arguments.normalize ? inverse : 1.0f, factor(16 * i + column, 2 + n));
            }
        }
        {
            float g = 0, beta = 0;
            if (lane < rows.tokens) {
                const auto at = [&](const TokenHeads& heads) {
                    return ((global<const float>)
                                heads.data)[rows.sequence * heads.sequence +
                                            (rows.first + lane) * heads.token + head * heads.head];
                };
                g = at(arguments.g);
                beta = at(arguments.beta);
            }
            const LogarithmParts parts(g);
            kittens::lds_write(LogarithmParts(sum_so_far(parts.coarse), sum_so_far(parts.fine)).sum(),
                               factor(lane, 0));
            kittens::lds_write(beta, factor(lane, 1));
        }
        const int64_t place = static_cast<int64_t>(number) * arguments.heads.value + head;
        ((global<four>)arguments.factors)[place * chunk_tokens + lane] =
            kittens::lds_read<four>(factor(lane, 0));

        const ChunkMatrices<T> matrices(arguments.matrices, arguments.matrices_of_chunk, place);
        auto* system = lds + factor_bytes;
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
            const int row = 16 * i + column;
            const four own = kittens::lds_read<four>(factor(row, 0));
#pragma unroll
            for (int j = 0; j < tiles; ++j) {
                four scores = 0;
                if (j <= i) {
                    four entries;
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int other = 16 * j + 4 * quarter + e;
                        const four theirs = kittens::lds_read<four>(factor(other, 0));
                        // Above the diagonal the exponent is positive and could overflow.
                        const float kept = other <= row ? decay(own[0] - theirs[0]) * theirs[2] : 0.0f;
                        entries[e] = other < row ? own[1] * own[2] * kept * of_keys[lower(i, j)][e] : 0.0f;
                        scores[e] = other <= row ? own[3] * kept * of_queries[lower(i, j)][e] : 0.0f;
                    }
                    kittens::lds_write(entries, system + system_byte(i, column, 16 * j + 4 * quarter));
                }
                matrices.store(ChunkMatrix::scores, i, j, scores);
            }
        }

        store_inverse<T>(system, matrices);
    }
};

}  // namespace hipkittens::delta_rule
