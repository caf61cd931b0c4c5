// kernels/delta_rule/scan_operands.h: a chunk's queries and keys as operands of a scan, and where their decays are.
// SPDX-License-Identifier: MIT
#pragma once
#include "state_columns.h"

namespace hipkittens::delta_rule {

// Of heads: elements as they are. Decays and norms are factors of rows of the products, and K^T is turned in LDS.
template <ScanConfig config>
struct HeadOperands {
    using T = typename element_of<config.element>::value;
    using OfTokens = SharedSums<T, config.columns, chunk_tokens>;
    using Transposed = SharedRows<T, chunk_tokens>;
    using State = StateTiles<config.key, config.columns>;
    static constexpr int key_steps = config.key / 32,
                         shared_bytes = OfTokens::bytes + config.key * Transposed::bytes_of_row;

    fragment<T> q[key_steps], k[key_steps];
    OfTokens kept;  // V' with the decays behind its rows
    Transposed keys;

    KITTENS_DEVICE explicit HeadOperands(kittens::shared_byte* lds)
        : kept{lds}, keys{lds + OfTokens::bytes} {}
    KITTENS_DEVICE void load_queries(const ScanArguments& all, const StateColumns& at, const ChunkOf& chunk) {
        load_rows<T>(q, all.common.q, all.common, at, chunk.rows);
    }
    KITTENS_DEVICE void load_keys(const ScanArguments& all, const StateColumns& at, const ChunkOf& chunk) {
        load_rows<T>(k, all.common.k, all.common, at, chunk.rows);
    }
    KITTENS_DEVICE static void load_kept_keys(const ScanArguments&, const StateColumns&, const ChunkOf&) {}
    // Factors of products with the state, of a row's RowFactors.
    KITTENS_DEVICE static float of_keys(four row) { return decay(row[0]) * row[2]; }
    KITTENS_DEVICE static float of_queries(four row) { return decay(row[0]) * row[3]; }

    KITTENS_DEVICE void share_keys(const StateColumns& at) const {
#pragma unroll
        for (int s = 0; s < key_steps; ++s)
            keys.write_transposed(16 * at.wave + at.column, 32 * s + 8 * at.quarter, k[s]);
    }
    KITTENS_DEVICE void share_kept(const StateColumns& at, int j, four change,
                                   const LaneFactors& factors) const {
        four values;
#pragma unroll
        for (int e = 0; e < 4; ++e)
            values[e] = change[e] * decay(factors.last - factors.of_rows[e][0]) * factors.of_rows[e][2];
        kept.write(16 * j + at.column, 16 * at.wave + 4 * at.quarter, values);
    }
    KITTENS_DEVICE const OfTokens& kept_changes(const OfTokens&) const { return kept; }
    KITTENS_DEVICE fragment<T> kept_keys(const StateColumns& at, int i, int s) const {
        return keys.read(State::key_row(at) + 16 * i + at.column, 32 * s + 8 * at.quarter);
    }
    // What a chunk leaves of the state's rows, by tiles of them.
    struct Ends {
        float last;
        KITTENS_DEVICE four operator[](int) const { return last; }
    };
    KITTENS_DEVICE static Ends ends_of_state(const LaneFactors& factors) { return {decay(factors.last)}; }
};

// Of channels: what channel_prepare has left, with all decays and norms in it.
template <ScanConfig config>
struct ChannelRows {
    using T = typename element_of<config.element>::value;
    using OfTokens = SharedSums<T, config.columns, chunk_tokens>;
    using State = StateTiles<config.key, config.columns>;
    static constexpr int key_steps = config.key / 32, token_steps = chunk_tokens / 32, shared_bytes = 0;
    static constexpr uint32_t elements = chunk_tokens * config.key,
                              bytes_of_matrix = elements * parts<T> * sizeof(T);

    Sum<T, 8> q[key_steps], k[key_steps], kept[State::key_tiles][token_steps];
    four ends[State::key_tiles];  // of the state's rows

    KITTENS_DEVICE explicit ChannelRows(kittens::shared_byte*) {}
    KITTENS_DEVICE static kittens::buffer matrix(const ScanArguments& all, ScaledRows which,
                                                 const ChunkOf& chunk) {
        return {(const char*)all.operands.scaled +
                    (static_cast<int64_t>(chunk.place) * 3 + static_cast<int>(which)) * bytes_of_matrix,
                chunk.is_there ? bytes_of_matrix : 0};
    }
    KITTENS_DEVICE void load_queries(const ScanArguments& all, const StateColumns& at, const ChunkOf& chunk) {
        load_matrix_rows<T, config.key>(q, matrix(all, ScaledRows::queries, chunk), 0, elements,
                                        16 * at.wave);
    }
    KITTENS_DEVICE void load_keys(const ScanArguments& all, const StateColumns& at, const ChunkOf& chunk) {
        load_matrix_rows<T, config.key>(k, matrix(all, ScaledRows::keys, chunk), 0, elements, 16 * at.wave);
    }
    KITTENS_DEVICE void load_kept_keys(const ScanArguments& all, const StateColumns& at,
                                       const ChunkOf& chunk) {
        const kittens::buffer decays{
            (const char*)(all.operands.decays + static_cast<int64_t>(chunk.place) * config.key),
            chunk.is_there ? config.key * 4u : 0};
#pragma unroll
        for (int i = 0; i < State::key_tiles; ++i) {
            const int row = State::key_row(at) + 16 * i;
            load_matrix_rows<T, chunk_tokens>(kept[i], matrix(all, ScaledRows::kept_keys, chunk), 0, elements,
                                              row);
            ends[i] = kittens::buffer_load<four>(decays, (row + 4 * at.quarter) * 4);
        }
    }
    KITTENS_DEVICE static float of_keys(four) { return 1.0f; }
    KITTENS_DEVICE static float of_queries(four) { return 1.0f; }
    KITTENS_DEVICE static void share_keys(const StateColumns&) {}
    KITTENS_DEVICE static void share_kept(const StateColumns&, int, four, const LaneFactors&) {}
    KITTENS_DEVICE static const OfTokens& kept_changes(const OfTokens& changes) { return changes; }
    KITTENS_DEVICE const Sum<T, 8>& kept_keys(const StateColumns&, int i, int s) const { return kept[i][s]; }
    KITTENS_DEVICE const four* ends_of_state(const LaneFactors&) const { return ends; }
};

}  // namespace hipkittens::delta_rule
