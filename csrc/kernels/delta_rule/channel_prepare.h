// kernels/delta_rule/channel_prepare.h: the state-independent part of a chunk, for decays per channel.
// SPDX-License-Identifier: MIT
#pragma once
#include "block_decays.h"
#include "chunk_inverse.h"
#include "token_decays.h"

namespace hipkittens::delta_rule {

// One workgroup per chunk of one value head, and one wave per block of 16 of its rows. 32 channels are processed at a time, of which a
// lane has 8 of row lane % 16. e^(gamma_i - gamma_j) is never computed from that difference, in which large sums would cancel, and none
// of the exponents is positive. Between blocks it is the product of the decays up to row i, of the blocks between, and of those after row
// j (S. Yang and others, Gated Linear Attention Transformers, 2024, also has a form with sub-blocks); within a block, k_j is passed from
// row to row and multiplied by the decay of each. The factor of the state is e to a single sum of all the chunk's logarithms: where
// little is added to a state, the roundings of a product of decays would be its error.
template <PrepareConfig config>
struct ChannelPrepare {
    using T = typename element_of<config.element>::value;
    using eight = kittens::eight;
    static constexpr int tiles = system_tiles, threads = 64 * tiles, waves_per_simd = sizeof(T) == 4 ? 1 : 2;
    static constexpr int step_channels = BlockTotals::channels, steps = config.key / step_channels;

    // A step has keys times the decays after them, as operands; a block's totals; and keys times the decays to the end of the chunk,
    // transposed. After the last step, the space holds the system, and the scores of diagonal blocks.
    using Turned = SharedRows<T, chunk_tokens>;
    static constexpr int fragment_bytes = 8 * static_cast<int>(sizeof(T)), lanes = kittens::wave_lanes,
                         shared_keys = tiles * parts<T> * lanes * fragment_bytes,
                         shared_totals = BlockTotals::bytes,
                         turned_part = step_channels * Turned::bytes_of_row,
                         step_bytes = shared_keys + shared_totals + parts<T> * turned_part;
    static constexpr int scores_pitch = 20, scores_of_wave = 16 * scores_pitch * 4,
                         product_bytes = system_bytes + tiles * scores_of_wave,
                         lds_bytes = step_bytes > product_bytes ? step_bytes : product_bytes;

    struct Inputs {
        fragment<T> q, k;
        kittens::b128 g[2];
    };

    // A wave's rows of the inputs.
    struct Rows {
        HeadView<T> q, k;
        kittens::buffer g;
        uint32_t row, key, g_step, g_bytes;  // of one of its elements
        bool is_row, wide;

        KITTENS_DEVICE Rows(const ChannelPrepareArguments& arguments, const Span& rows, uint32_t head,
                            uint32_t key_head, uint32_t row)
            : q(arguments.q, rows, key_head),
              k(arguments.k, rows, key_head),
              row(row),
              key(arguments.key),
              g_bytes(arguments.wide_g ? 4 : sizeof(T)),
              is_row(row < rows.tokens),
              wide(arguments.wide_g) {
            const auto& of = arguments.g;
            g = {(const char*)of.data +
                     (rows.sequence * of.sequence + rows.first * of.token + head * of.head) * g_bytes,
                 0x80000000u};
            g_step = static_cast<uint32_t>(of.token) * g_bytes;
        }
        KITTENS_DEVICE bool has(uint32_t channel) const { return is_row && channel < key; }
        KITTENS_DEVICE void load_keys(Inputs& to, uint32_t channel) const {
            to.q = load_fragment<T>(q.memory, q.offset(row, channel, has(channel)));
            to.k = load_fragment<T>(k.memory, k.offset(row, channel, has(channel)));
        }
        KITTENS_DEVICE void load(Inputs& to, uint32_t channel) const {
            load_keys(to, channel);
            const uint32_t first = has(channel) ? row * g_step + channel * g_bytes : ~uint32_t{255};
            to.g[0] = kittens::buffer_load<kittens::b128>(g, first);
            if (wide) to.g[1] = kittens::buffer_load<kittens::b128>(g, first + 16);
        }
        KITTENS_DEVICE eight logarithms(const Inputs& from) const {
            if constexpr (kittens::is_16bit<T>)
                if (!wide) return kittens::widened(__builtin_bit_cast(fragment<T>, from.g[0]));
            eight result;
            result.lo = __builtin_bit_cast(four, from.g[0]);
            result.hi = __builtin_bit_cast(four, from.g[1]);
            return result;
        }
    };

    // The logarithms of the decays of 8 channels of a row.
    KITTENS_DEVICE static eight gated(const ChannelPrepareArguments& arguments, uint32_t head, float rate,
                                      const Rows& rows, const Inputs& inputs, uint32_t channel) {
        eight result = rows.logarithms(inputs);
        if (arguments.a_log && channel < arguments.key) {
            auto* biases = (global<const float>)arguments.dt_bias + head * arguments.key + channel;
#pragma unroll
            for (int e = 0; e < 8; ++e)
                result[e] = gated_logarithm(result[e] + biases[e], rate, arguments.lower_bound);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) result[e] = rows.has(channel) ? result[e] : 0.0f;
        return result;
    }

    KITTENS_DEVICE static float rate_of(const ChannelPrepareArguments& arguments, uint32_t head,
                                        const Span& rows, uint32_t row) {
        if (row >= rows.tokens) return 0;
        const auto& of = arguments.beta;
        const int64_t at = rows.sequence * of.sequence + (rows.first + row) * of.token + head * of.head;
        float rate = arguments.wide_beta ? ((global<const float>)of.data)[at]
                                         : static_cast<float>(((global<const T>)of.data)[at]);
        if (arguments.beta_is_logit) rate = kittens::sigmoid<true>(rate).value;
        return rate;
    }

    KITTENS_DEVICE static void run(const ChannelPrepareArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t number = arguments.heads.quotient(kittens::workgroup_id_x()),
                       head = kittens::workgroup_id_x() - number * arguments.heads.value,
                       key_head = arguments.group.quotient(head);
        const Span span = rows_of_chunk(arguments.chunks, number);
        if (span.tokens <= 0) return;
        const int lane = kittens::lane_id(), column = lane % 16, quarter = lane / 16,
                  wave = kittens::wave_id(), row = 16 * wave + column;
        const Rows rows(arguments, span, head, key_head, row);
        const int64_t place = static_cast<int64_t>(number) * arguments.heads.value + head;

        float of_q = 1, of_k = 1;
        if (arguments.normalize) {
            float square_q = 0, square_k = 0;
#pragma unroll
            for (int step = 0; step < steps; ++step) {
                Inputs inputs;
                rows.load_keys(inputs, step_channels * step + 8 * quarter);
                const eight q = kittens::widened(inputs.q), k = kittens::widened(inputs.k);
#pragma unroll
                for (int e = 0; e < 8; ++e) {
                    square_q = __builtin_fmaf(q[e], q[e], square_q);
                    square_k = __builtin_fmaf(k[e], k[e], square_k);
                }
            }
            of_q = kittens::hardware_reciprocal_square_root(sum_of_quarters(square_q) + 1e-6f);
            of_k = kittens::hardware_reciprocal_square_root(sum_of_quarters(square_k) + 1e-6f);
        }
        const float beta = rate_of(arguments, head, span, row);
        if (quarter == 0)
            ((global<four>)arguments.factors)[place * chunk_tokens + row] = four{0.0f, beta, 1.0f, 1.0f};
        const float rate = arguments.a_log
                               ? -kittens::exponential<true>(((global<const float>)arguments.a_log)[head])
                               : 0.0f;

        constexpr int elements = chunk_tokens * config.key;
        auto* scaled = (global<T>)arguments.operands.scaled + place * (3 * parts<T> * elements);
        auto* ends = (global<float>)arguments.operands.decays + place * config.key;
        const auto store = [&](ScaledRows which, int element, int part, fragment<T> values) KITTENS_INLINE {
            *(global<fragment<T>>)(scaled + (static_cast<int>(which) * parts<T> + part) * elements +
                                   element) = values;
        };
        const auto shared_key = [=](int block, int part) {
            return lds + ((block * parts<T> + part) * lanes + lane) * fragment_bytes;
        };
        const BlockTotals totals{lds + shared_keys, 8 * quarter};
        const auto turned = [=](int part) {
            return Turned{lds + shared_keys + shared_totals + part * turned_part};
        };

        // Products with rows of earlier blocks, and with the row `distance` above.
        four of_keys[tiles - 1], of_queries[tiles - 1];
#pragma unroll
        for (int j = 0; j < tiles - 1; ++j) of_keys[j] = of_queries[j] = 0;
        float near_keys[16] = {}, near_queries[16] = {};
        Inputs next;
        rows.load(next, 8 * quarter);
        for (int step = 0; step < steps; ++step) {
            const uint32_t channel = step_channels * step + 8 * quarter;
            const eight queries = kittens::widened(next.q) * of_q, keys = kittens::widened(next.k) * of_k,
                        logarithms = gated(arguments, head, rate, rows, next, channel);
            if (step + 1 < steps) rows.load(next, channel + step_channels);
            const BlockDecays block(logarithms);
            {
                const Sum<T, 8> shared(keys * block.behind);
#pragma unroll
                for (int n = 0; n < parts<T>; ++n) write(shared.part[n], shared_key(wave, n));
                totals.share(wave, block.here, logarithms);
            }
            eight above = keys, kept;
#pragma unroll
            for (int e = 0; e < 8; ++e) kept[e] = decay(logarithms[e]);
#pragma unroll
            for (int distance = 0; distance < 16; ++distance) {
#pragma unroll
                for (int e = 0; e < 8; ++e) {
                    if (distance > 0) above[e] = kept[e] * kittens::rotate_in_16<1>(above[e]);
                    near_keys[distance] = __builtin_fmaf(keys[e], above[e], near_keys[distance]);
                    near_queries[distance] = __builtin_fmaf(queries[e], above[e], near_queries[distance]);
                }
                // Otherwise the rows of all distances would be kept in registers until these sums are computed.
                kittens::materialize(near_keys[distance]);
                kittens::materialize(near_queries[distance]);
            }
            kittens::barrier();

            // From the block before the wave's back to the first one of the chunk.
            eight since = block.here, left = block.behind;
#pragma unroll
            for (int n = 0; n < tiles - 1; ++n) {
                if (n >= wave) break;
                const int other = wave - 1 - n;
                Sum<T, 8> theirs;
#pragma unroll
                for (int part = 0; part < parts<T>; ++part) theirs.part[part] = read(shared_key(other, part));
                of_keys[n] = add_product<T>(theirs, Sum<T, 8>(keys * since), of_keys[n]);
                of_queries[n] = add_product<T>(theirs, Sum<T, 8>(queries * since), of_queries[n]);
                since *= totals.decay_of(other);
            }
            for (int other = wave + 1; other < tiles; ++other) left *= totals.decay_of(other);
            const Sum<T, 8> all_queries(queries * since), all_keys(keys * since), to_end(keys * left);
#pragma unroll
            for (int n = 0; n < parts<T>; ++n) {
                const int element = matrix_element<config.key>(row, channel);
                store(ScaledRows::queries, element, n, all_queries.part[n]);
                store(ScaledRows::keys, element, n, all_keys.part[n]);
                turned(n).write_transposed(row, 8 * quarter, to_end.part[n]);
            }
            if (row == 0) *(global<eight>)(ends + channel) = totals.decay_of_chunk();
            kittens::barrier();

            const int key_row = 16 * (wave / 2) + column, token = 32 * (wave % 2) + 8 * quarter;
#pragma unroll
            for (int n = 0; n < parts<T>; ++n)
                store(ScaledRows::kept_keys, matrix_element(step_channels * step + key_row, token), n,
                      turned(n).read(key_row, token));
        }
        // The system replaces the keys of the last step.
        kittens::barrier();

        const ChunkMatrices<T> matrices(arguments.matrices, 2, place);
        auto* scores = lds + system_bytes + wave * scores_of_wave;
#pragma unroll
        for (int distance = 0; distance < 16; ++distance) {
            const float of_key = sum_of_quarters(near_keys[distance]),
                        of_query = sum_of_quarters(near_queries[distance]);
            // Rows above the first one wrap to the last ones of the block, and their results are above the diagonal.
            const bool is_above = distance <= column;
            const int other = (column - distance) & 15;
            if (quarter == distance % 4) {
                kittens::lds_write(is_above && distance > 0 ? beta * of_key : 0.0f,
                                   lds + system_byte(wave, column, 16 * wave + other));
                kittens::lds_write(is_above ? of_query : 0.0f, scores + (column * scores_pitch + other) * 4);
            }
        }
        matrices.store(ChunkMatrix::scores, wave, wave,
                       kittens::lds_read<four>(scores + (column * scores_pitch + 4 * quarter) * 4));
#pragma unroll
        for (int n = 0; n < tiles - 1; ++n) {
            // For the other blocks, a wave has products with the preceding ones, and zeros above the diagonal.
            const int other = n < wave ? wave - 1 - n : n + 1;
            const four values = n < wave ? of_keys[n] * beta : four(0.0f);
            if (n < wave)
                kittens::lds_write(values, lds + system_byte(wave, column, 16 * other + 4 * quarter));
            matrices.store(ChunkMatrix::scores, wave, other, n < wave ? of_queries[n] : four(0.0f));
        }
        kittens::barrier();
        if (wave == 0) store_inverse<T>(lds, matrices);
    }

    KITTENS_DEVICE static void write(fragment<T> values, kittens::shared_byte* to) {
        if constexpr (kittens::is_16bit<T>) {
            kittens::lds_write(values, to);
        } else {
            kittens::lds_write(four(values.lo), to);
            kittens::lds_write(four(values.hi), to + 16);
        }
    }
    KITTENS_DEVICE static fragment<T> read(kittens::shared_byte* from) {
        if constexpr (kittens::is_16bit<T>) {
            return kittens::lds_read<fragment<T>>(from);
        } else {
            fragment<T> result;
            result.lo = kittens::lds_read<four>(from);
            result.hi = kittens::lds_read<four>(from + 16);
            return result;
        }
    }
};

}  // namespace hipkittens::delta_rule
