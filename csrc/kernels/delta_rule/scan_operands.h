// kernels/delta_rule/scan_operands.h: a chunk's queries and keys as operands of a scan, and where their decays are applied.
// SPDX-License-Identifier: MIT
#pragma once
#include "scan_state.h"

namespace hipkittens::delta_rule {

// Factors of a row's products with the state and with the state's update: beta and, for HeadOperands, the decays from the
// chunk's first row on, those to its end times the norm of the key, and the decay of the chunk.
enum class Factor { beta, of_keys, of_kept, of_state };
struct SharedFactors {
    static constexpr int bytes_of_factor = (chunk_tokens + 16) * 4, bytes = 4 * bytes_of_factor;
    kittens::shared_byte* base;

    // Called by the four lanes that have a row: two factors of 16 rows cover all banks at once.
    KITTENS_DEVICE void write(int row, four factors) const {
        // Computed by all of them, not after a branch.
        kittens::materialize(factors);
        const int own = kittens::lane_id() / 16;
        const float low = own & 1 ? factors[1] : factors[0], high = own & 1 ? factors[3] : factors[2];
        kittens::lds_write(own & 2 ? high : low, base + own * bytes_of_factor + row * 4);
    }
    // For four rows.
    KITTENS_DEVICE four read(Factor which, int row) const {
        return kittens::lds_read<four>(base + static_cast<int>(which) * bytes_of_factor + row * 4);
    }
};

// I as an operand of 16 keys, for products that transpose a tile.
template <class T>
KITTENS_DEVICE kittens::vec<T, 4> unit_rows() {
    const int first = kittens::lane_id() % 16 - kittens::lane_id() / 16 * 4;
    kittens::vec<T, 4> result;
#pragma unroll
    for (int e = 0; e < 4; ++e) result[e] = static_cast<T>(first == e ? 1.0f : 0.0f);
    return result;
}
// For keys that are four of a lane's eight: the four rows of one of them that the lane has of the transposed tile. Exact.
template <class T>
KITTENS_DEVICE four turned_over(kittens::vec<T, 4> rows, kittens::vec<T, 4> unit) {
    if constexpr (kittens::is_16bit<T>) {
        return kittens::matrix_16x16<T>(rows, unit, four(0.0f));
    } else {
        four result = 0;
#pragma unroll
        for (int e = 0; e < 4; ++e) result = kittens::matrix_16x16(rows[e], unit[e], result);
        return result;
    }
}
// From floats that are representable as elements.
template <class T>
KITTENS_DEVICE fragment<T> elements_of(four lo, four hi) {
    const kittens::eight both = __builtin_shufflevector(lo, hi, 0, 1, 2, 3, 4, 5, 6, 7);
    if constexpr (kittens::same_type<T, kittens::bf16>) {
        const auto words = __builtin_bit_cast(kittens::vec<uint32_t, 8>, both);
        kittens::vec<uint32_t, 4> pairs;
#pragma unroll
        for (int n = 0; n < 4; ++n)
            pairs[n] = kittens::permute_bytes(words[2 * n + 1], words[2 * n], 0x07060302);
        return __builtin_bit_cast(fragment<T>, pairs);
    } else {
        return __builtin_convertvector(both, fragment<T>);
    }
}

// For decays per head: unscaled elements. Decays and norms are factors of rows of the products.
template <ScanConfig config>
struct HeadOperands {
    using T = typename element_of<config.element>::value;
    using OfTokens = SharedSums<T, config.columns, chunk_tokens>;
    using State = StatePairs<config.key, config.columns>;
    // If a wave has half a cache line of a row's keys, keys are loaded as whole lines and shared; otherwise each wave loads its own.
    static constexpr bool shares_keys = 32 * State::pairs * sizeof(T) < 128;
    using StagedKeys = StagedRows<T, shares_keys ? config.key : 32 * State::pairs>;
    static constexpr int key_stages = shares_keys ? 1 : row_tiles;
    using StagedQueries = StagedRows<T, 64>;
    static constexpr int key_steps = config.key / 32;
    static constexpr int staging_bytes_of_keys = StagedKeys::bytes,
                         staging_bytes_of_queries = StagedQueries::bytes;

    // The wave's keys of all rows of a chunk.
    struct Keys {
        fragment<T> of_rows[State::pairs][row_tiles], kept[2 * State::pairs][token_steps];
        kittens::vec<T, 4> unit = unit_rows<T>();
        StagedKeys staged[key_stages];
        WalkedRows<T> from;

        KITTENS_DEVICE Keys(const ScanArguments& all, const StateColumns& at, const ChunksOf& chunks)
            : from(all.common.k, chunks.span, at.key_head, all.common.key) {}
        // Loads those of the chunk after that of the previous call.
        KITTENS_DEVICE void load_ahead(const StateColumns& at, int32_t rows) {
            const kittens::buffer memory = from.memory(rows);
#pragma unroll
            for (int n = 0; n < key_stages; ++n)
                staged[n].load(from, memory, 16 * (shares_keys ? at.wave : n),
                               shares_keys ? 0 : State::first_key(at));
            from.advance();
        }
        KITTENS_DEVICE void load(const ScanArguments&, const StateColumns&, const ChunkOf&) {}
        KITTENS_DEVICE void load_kept(const ScanArguments&, const StateColumns&, const ChunkOf&) {}
        // Called before a barrier, after which they are taken.
        KITTENS_DEVICE void give(const StateColumns& at, kittens::shared_byte* lds) const {
            if constexpr (shares_keys) staged[0].write(lds + at.wave * StagedKeys::bytes);
        }
        KITTENS_DEVICE void take(const StateColumns& at, kittens::shared_byte* lds) {
#pragma unroll
            for (int t = 0; t < row_tiles; ++t) {
                if constexpr (shares_keys) {
                    of_rows[0][t] = StagedKeys::read(lds + t * StagedKeys::bytes, at.wave % State::waves);
                } else {
                    staged[t].write(lds + at.wave * StagedKeys::bytes);
#pragma unroll
                    for (int p = 0; p < State::pairs; ++p)
                        of_rows[p][t] = StagedKeys::read(lds + at.wave * StagedKeys::bytes, p);
                }
            }
        }
        // Rows of V' are in this order (kept_column): those of two base tiles, alternating in groups of four.
        KITTENS_DEVICE void turn() {
#pragma unroll
            for (int p = 0; p < State::pairs; ++p)
#pragma unroll
                for (int s = 0; s < token_steps; ++s) {
                    const auto first = of_rows[p][2 * s], second = of_rows[p][2 * s + 1];
                    kept[2 * p][s] =
                        elements_of<T>(turned_over<T>(first.lo, unit), turned_over<T>(second.lo, unit));
                    kept[2 * p + 1][s] =
                        elements_of<T>(turned_over<T>(first.hi, unit), turned_over<T>(second.hi, unit));
                    // For large keys, for which registers are scarce, converted to elements at once.
                    if constexpr (State::pairs > 1) {
                        kittens::materialize(kept[2 * p][s]);
                        kittens::materialize(kept[2 * p + 1][s]);
                    }
                }
        }
        // The factor of the state's rows over a chunk.
        KITTENS_DEVICE four end(int, float of_chunk) const { return of_chunk; }
    };
    KITTENS_DEVICE static int kept_column(const StateColumns& at) {
        return 32 * (at.wave / 2) + 8 * at.quarter + 4 * (at.wave % 2);
    }

    // The wave's rows.
    using OfQueries = fragment<T>;
    struct Queries {
        OfQueries of_rows[key_steps];
        StagedQueries staged[key_steps / 2];

        WalkedRows<T> from;

        KITTENS_DEVICE Queries(const ScanArguments& all, const StateColumns& at, const ChunksOf& chunks)
            : from(all.common.q, chunks.span, at.key_head, all.common.key) {}
        KITTENS_DEVICE void load_ahead(const StateColumns& at, int32_t rows) {
            const kittens::buffer memory = from.memory(rows);
#pragma unroll
            for (int n = 0; n < key_steps / 2; ++n) staged[n].load(from, memory, 16 * at.wave, 64 * n);
            from.advance();
        }
        KITTENS_DEVICE void load(const ScanArguments&, const StateColumns&, const ChunkOf&) {}
        KITTENS_DEVICE void take(const StateColumns& at, kittens::shared_byte* all) {
            auto* lds = all + at.wave * StagedQueries::bytes;
#pragma unroll
            for (int n = 0; n < key_steps / 2; ++n) {
                staged[n].write(lds);
#pragma unroll
                for (int s = 0; s < 2; ++s) of_rows[2 * n + s] = StagedQueries::read(lds, s);
            }
        }
    };

    KITTENS_DEVICE static four factors_of(four row, float last) {
        return {row[1], decay(row[0]) * row[2], decay(last - row[0]) * row[2], decay(last)};
    }
    static constexpr bool scales_rows = true;
    KITTENS_DEVICE static float of_queries(four row) { return decay(row[0]) * row[3]; }
};

// For decays per channel: the results of channel_prepare, which include all decays and norms.
template <ScanConfig config>
struct ChannelRows {
    using T = typename element_of<config.element>::value;
    using State = StatePairs<config.key, config.columns>;
    static constexpr int key_steps = config.key / 32, staging_bytes_of_keys = 0, staging_bytes_of_queries = 0;
    static constexpr bool shares_keys = false;
    static constexpr uint32_t elements = chunk_tokens * config.key,
                              bytes_of_matrix = elements * parts<T> * sizeof(T);

    KITTENS_DEVICE static kittens::buffer matrix(const ScanArguments& all, ScaledRows which,
                                                 const ChunkOf& chunk) {
        return {(const char*)all.operands.scaled +
                    (static_cast<int64_t>(chunk.place) * 3 + static_cast<int>(which)) * bytes_of_matrix,
                chunk.is_there ? bytes_of_matrix : 0};
    }

    struct Keys {
        Sum<T, 8> of_rows[State::pairs][row_tiles], kept[2 * State::pairs][token_steps];
        four ends[2 * State::pairs];

        KITTENS_DEVICE Keys(const ScanArguments&, const StateColumns&, const ChunksOf&) {}
        KITTENS_DEVICE void load_ahead(const StateColumns&, int32_t) {}
        KITTENS_DEVICE void load(const ScanArguments& all, const StateColumns& at, const ChunkOf& chunk) {
            const kittens::buffer memory = matrix(all, ScaledRows::keys, chunk);
#pragma unroll
            for (int p = 0; p < State::pairs; ++p)
#pragma unroll
                for (int t = 0; t < row_tiles; ++t)
                    of_rows[p][t] = load_matrix_element<T, config.key>(
                        memory, elements, 16 * t + at.column, State::first_key(at) + 32 * p + 8 * at.quarter);
        }
        KITTENS_DEVICE void load_kept(const ScanArguments& all, const StateColumns& at,
                                      const ChunkOf& chunk) {
            const kittens::buffer memory = matrix(all, ScaledRows::kept_keys, chunk),
                                  decays{(const char*)(all.operands.decays +
                                                       static_cast<int64_t>(chunk.place) * config.key),
                                         chunk.is_there ? config.key * 4u : 0};
#pragma unroll
            for (int i = 0; i < 2 * State::pairs; ++i) {
#pragma unroll
                for (int s = 0; s < token_steps; ++s)
                    kept[i][s] = load_matrix_element<T, chunk_tokens>(
                        memory, elements, State::key_of_row(at, i, at.column), 32 * s + 8 * at.quarter);
                ends[i] = kittens::buffer_load<four>(decays, State::key_of(at, i) * 4);
            }
        }
        KITTENS_DEVICE void give(const StateColumns&, kittens::shared_byte*) const {}
        KITTENS_DEVICE void take(const StateColumns&, kittens::shared_byte*) {}
        KITTENS_DEVICE void turn() {}
        KITTENS_DEVICE four end(int i, float) const { return ends[i]; }
    };
    KITTENS_DEVICE static int kept_column(const StateColumns& at) { return 16 * at.wave + 4 * at.quarter; }

    using OfQueries = Sum<T, 8>;
    struct Queries {
        OfQueries of_rows[key_steps];

        KITTENS_DEVICE Queries(const ScanArguments&, const StateColumns&, const ChunksOf&) {}
        KITTENS_DEVICE void load_ahead(const StateColumns&, int32_t) {}
        KITTENS_DEVICE void load(const ScanArguments& all, const StateColumns& at, const ChunkOf& chunk) {
            load_matrix_rows<T, config.key>(of_rows, matrix(all, ScaledRows::queries, chunk), 0, elements,
                                            16 * at.wave);
        }
        KITTENS_DEVICE void take(const StateColumns&, kittens::shared_byte*) {}
    };

    KITTENS_DEVICE static four factors_of(four row, float) { return {row[1], 1.0f, 1.0f, 1.0f}; }
    static constexpr bool scales_rows = false;
    KITTENS_DEVICE static float of_queries(four) { return 1.0f; }
};

}  // namespace hipkittens::delta_rule
