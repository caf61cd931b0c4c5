// kernels/delta_rule/prepare.h: what a chunk needs and no state: decays, the inverse of its system, its scores.
// SPDX-License-Identifier: MIT
#pragma once
#include "chunk.h"

namespace hipkittens::delta_rule {

// Over the lanes of one column: those 16 and 32 apart.
KITTENS_DEVICE float sum_of_quarters(float x) {
    x += kittens::exchange_16(x);
    return x + kittens::exchange_32(x);
}

// The sum of the lanes up to this one.
KITTENS_DEVICE float sum_so_far(float value) {
    const int lane = kittens::lane_id();
#pragma unroll
    for (int distance = 1; distance < 64; distance *= 2) {
        const float before = kittens::read_lane(value, lane - distance);
        value += lane >= distance ? before : 0.0f;
    }
    return value;
}

// One wave for a chunk of one value head. In base tile (i, j) a lane has row 16 i + lane % 16 and columns
// 16 j + 4 (lane / 16) .. + 3.
template <PrepareConfig config>
struct Prepare {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = 64, waves_per_simd = 1;
    static constexpr int tiles = chunk_tokens / 16, lower_tiles = tiles * (tiles + 1) / 2;
    // Floats of a row of A, so that rows begin in different banks.
    static constexpr int pitch = chunk_tokens + 4;
    static constexpr int factor_bytes = chunk_tokens * static_cast<int>(sizeof(RowFactors)),
                         lds_bytes = factor_bytes + chunk_tokens * pitch * 4;

    KITTENS_DEVICE static constexpr int lower(int i, int j) { return i * (i + 1) / 2 + j; }

    KITTENS_DEVICE static void run(const PrepareArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t number = arguments.heads.quotient(kittens::workgroup_id_x()),
                       head = kittens::workgroup_id_x() - number * arguments.heads.value,
                       key_head = arguments.group.quotient(head);
        const Span rows = rows_of_chunk(arguments.chunks, number);
        if (rows.tokens <= 0) return;
        const int lane = kittens::lane_id(), column = lane % 16, quarter = lane / 16;
        const HeadView<T> q(arguments.q, rows, key_head), k(arguments.k, rows, key_head);

        // K K^T and Q K^T of the elements as they are: products of 16 bits are exact.
        four of_keys[lower_tiles], of_queries[lower_tiles];
#pragma unroll
        for (int n = 0; n < lower_tiles; ++n) of_keys[n] = of_queries[n] = 0;
        float square_k[tiles] = {}, square_q[tiles] = {};
        for (uint32_t first = 0; first < arguments.key; first += 32) {
            fragment<T> keys[tiles], queries[tiles];
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                const uint32_t row = 16 * i + column, at = first + 8 * quarter;
                const bool is_there = row < rows.tokens && at < arguments.key;
                keys[i] = load_fragment<T>(k.memory, k.offset(row, at, is_there));
                queries[i] = load_fragment<T>(q.memory, q.offset(row, at, is_there));
            }
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
            kittens::lds_write(sum_so_far(g), factor(lane, 0));
            kittens::lds_write(beta, factor(lane, 1));
        }
        const int64_t place = static_cast<int64_t>(number) * arguments.heads.value + head;
        ((global<four>)arguments.factors)[place * chunk_tokens + lane] =
            kittens::lds_read<four>(factor(lane, 0));

        auto* matrices = (global<T>)arguments.matrices +
                         place * (arguments.matrices_of_chunk * matrix_bytes<T> / sizeof(T));
        // A lane's part of a base tile.
        const auto store = [&](ChunkMatrix which, int i, int j, four values) {
            const Sum<T, 4> sum(values);
            const int row = 16 * i + column, first = 16 * j + 4 * quarter;
#pragma unroll
            for (int n = 0; n < parts<T>; ++n) {
                auto* to = matrices + (static_cast<int>(which) * parts<T> + n) * chunk_tokens * chunk_tokens;
                *(global<kittens::vec<T, 4>>)(to + matrix_element(row, first)) = sum.part[n];
                if (arguments.matrices_of_chunk > 2) {
                    to += 2 * parts<T> * chunk_tokens * chunk_tokens;
#pragma unroll
                    for (int e = 0; e < 4; ++e) to[matrix_element(first + e, row)] = sum.part[n][e];
                }
            }
        };
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
                    kittens::lds_write(entries, system + (row * pitch + 16 * j + 4 * quarter) * 4);
                }
                store(ChunkMatrix::scores, i, j, scores);
            }
        }

        // T (I + A) = I. The blocks of the diagonal by substitution: each lane a row of one of them, from the last column back.
        {
            auto* block = system + 16 * quarter * (pitch + 1) * 4;
            float row[16];
#pragma unroll
            for (int j = 15; j >= 0; --j) {
                row[j] = column == j ? 1.0f : 0.0f;
#pragma unroll
                for (int m = j + 1; m < 16; ++m)
                    row[j] = __builtin_fmaf(-kittens::lds_read<float>(block + (m * pitch + j) * 4), row[m],
                                            row[j]);
            }
#pragma unroll
            for (int j = 0; j < 16; j += 4)
                kittens::lds_write(four{row[j], row[j + 1], row[j + 2], row[j + 3]},
                                   block + (column * pitch + j) * 4);
        }
        // Below it T_ij = -(sum over j < m <= i of T_im A_mj) T_jj. A block's lane has neighbours of a row, which is what the next
        // product takes of its left operand; of the right one it takes neighbours of a column.
        const auto left = [&](int i, int j) {
            return kittens::lds_read<four>(system + ((16 * i + column) * pitch + 16 * j + 4 * quarter) * 4);
        };
        const auto add_product = [&](four a, int i, int j, four sum) {
#pragma unroll
            for (int e = 0; e < 4; ++e)
                sum = kittens::matrix_16x16(
                    kittens::lds_read<float>(system +
                                             ((16 * i + 4 * quarter + e) * pitch + 16 * j + column) * 4),
                    a[e], sum);
            return sum;
        };
        four inverse[lower_tiles];
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
            inverse[lower(i, i)] = left(i, i);
#pragma unroll
            for (int j = i - 1; j >= 0; --j) {
                four sum = 0;
#pragma unroll
                for (int m = i; m > j; --m) sum = add_product(inverse[lower(i, m)], m, j, sum);
                inverse[lower(i, j)] = add_product(-sum, j, j, four(0.0f));
            }
        }
#pragma unroll
        for (int i = 0; i < tiles; ++i)
#pragma unroll
            for (int j = 0; j < tiles; ++j)
                store(ChunkMatrix::inverse, i, j, j <= i ? inverse[lower(i, j <= i ? j : i)] : four(0.0f));
    }
};

}  // namespace hipkittens::delta_rule
