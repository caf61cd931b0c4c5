// kernels/logits/score.h: sums over heads of weighted products of queries and keys, with negative products set to 0.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "../element_of.h"
#include "kinds.h"

namespace hipkittens::logits {

using namespace kittens;

template <class T>
using global = __attribute__((address_space(1))) T*;
// 16 bytes of an operand of matrix instructions.
using Piece = vec<uint32_t, 4>;
// 16-byte accesses need dword alignment.
KITTENS_DEVICE Piece load_piece(global<const char> address) {
    typedef Piece piece __attribute__((aligned(4)));
    return *(global<const piece>)address;
}

struct KeyRange {
    int first, past;
    KITTENS_DEVICE bool is_empty() const { return first >= past; }
    KITTENS_DEVICE bool has(int key) const { return key >= first && key < past; }
    // Whether it contains any of the wave's keys from `key` on.
    KITTENS_DEVICE bool meets(int key) const { return !is_empty() && key < past && key + wave_keys > first; }
    // Nothing outside is read: for other keys, its first or last one is read.
    KITTENS_DEVICE int nearest(int key) const {
        key = key < past ? key : past - 1;
        return key > first ? key : first;
    }
};

// A matrix instruction has 16 heads as its rows and 16 keys as its columns, and leaves four heads of key l % 16 in lane l. Of a row, lane
// l reads 16-byte pieces selected by l / 16; q is read in the same order, so the order along the head dimension does not matter. A lane
// sums over its heads, and at the end the four lanes of a key are added: always in the same order, whatever else the launch computes.
template <LogitsConfig config>
struct Score {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = logits::threads;
    static constexpr int row_bytes = config.row_bytes(), pieces = row_bytes / (4 * b128_bytes),
                         row_pieces = 4 * pieces, rows = config.rows();
    static constexpr int lds_bytes = query_bytes + rows * static_cast<int>(sizeof(float));
    // gfx942's LDS has room for three workgroups.
    static constexpr int waves_per_simd = target.lds_bytes / lds_bytes < 4 ? 3 : 4;
    using Row = Piece[pieces];

    const LogitsArguments& arguments;
    shared_byte* const lds;
    // Of the workgroup.
    uint32_t sequence;
    int first_token, tokens;  // of the sequence
    KeyRange range;           // of all its tokens
    // The wave's keys, which are those of lane l % 16 of each tile, and the scale of key l.
    Row keys[key_tiles];
    float key_scale;

    KITTENS_DEVICE Score(const LogitsArguments& arguments, shared_byte* lds)
        : arguments(arguments), lds(lds) {}

    KITTENS_DEVICE static void run(const LogitsArguments& arguments, shared_byte* lds) {
        Score score(arguments, lds);
        uint32_t item = workgroup_id_x();
        const auto next = [&](const Divisor& divisor) {
            const uint32_t quotient = divisor.quotient(item), rest = item - quotient * divisor.value;
            item = quotient;
            return uniform(rest);
        };
        const uint32_t token_block = next(arguments.token_blocks), key_block = next(arguments.key_blocks);
        score.sequence = uniform(item);
        score.first_token = token_block * arguments.block_tokens;
        const int left = arguments.queries - score.first_token;
        score.tokens =
            left < static_cast<int>(arguments.block_tokens) ? left : static_cast<int>(arguments.block_tokens);
        score.compute(key_block * arguments.turns * turn_keys);
    }

    KITTENS_DEVICE uint32_t row_of(int token) const {
        return sequence * arguments.queries + first_token + token;
    }
    KITTENS_DEVICE KeyRange range_of(int token) const {
        const uint32_t row = row_of(token);
        const int limit = arguments.limit;
        int first = 0, past;
        if constexpr (!config.paged) first = arguments.starts[row];
        if (config.paged && arguments.ends_of_sequences)
            past = arguments.ends[sequence] + (first_token + token + 1) - static_cast<int>(arguments.queries);
        else
            past = arguments.ends[row];
        first = first > 0 ? first : 0;
        past = past < limit ? past : limit;
        return {static_cast<int>(uniform(first)), static_cast<int>(uniform(past))};
    }

    KITTENS_DEVICE void compute(int from) {
        range = {INT32_MAX, 0};
        for (int token = 0; token < tokens; ++token) {
            const KeyRange each = range_of(token);
            if (each.is_empty()) continue;
            range.first = each.first < range.first ? each.first : range.first;
            range.past = each.past > range.past ? each.past : range.past;
        }
        const int past = from + static_cast<int>(arguments.turns) * turn_keys;
        const bool none = range.is_empty() || range.past <= from || range.first >= past;
        if (none && !arguments.clean) return;
        // Either the heads of all tokens are in LDS, or part of those of one token at a time.
        const int heads = arguments.heads;
        const bool resident = heads <= rows;
        if (resident && !none) {
            for (int token = 0; token < tokens; ++token) put_rows(token, 0, token * padded(heads));
            barrier();
        }
        for (uint32_t turn = 0; turn < arguments.turns; ++turn) {
            const int turn_from = from + static_cast<int>(turn) * turn_keys;
            if (turn_from >= static_cast<int>(arguments.keys)) return;
            const int key = turn_from + wave_id() * wave_keys;
            bool is_used = false;  // ranges may leave a gap
            for (int token = 0; token < tokens; ++token) is_used |= range_of(token).meets(key);
            if (is_used) load_keys(key);
            for (int token = 0; token < tokens; ++token) {
                const KeyRange each = range_of(token);
                const bool meets = each.meets(key);
                vec<float, 2> sums[key_tiles] = {};
                if (resident) {
                    if (meets) add(sums, token * padded(heads), padded(heads));
                } else if (!none) {
                    for (int head = 0; head < heads; head += rows) {
                        barrier();
                        put_rows(token, head, 0);
                        barrier();
                        if (meets) add(sums, 0, padded(heads - head));
                    }
                }
                store(token, key, each, meets ? total_of_lane(sums) * key_scale : 0.0f);
            }
        }
    }

    // Rows in LDS for this many heads.
    KITTENS_DEVICE static int padded(int heads) { return heads < rows ? (heads + 15) / 16 * 16 : rows; }

    // The pieces of a row are permuted, so that those read in one phase are in different banks.
    KITTENS_DEVICE static int place(int piece, int row) {
        constexpr int rows_in_window = target.read_b128_window_bytes / row_bytes;
        constexpr int most = row_pieces < 16 ? row_pieces - 1 : 15;
        int change = rows_in_window > 1 ? row / rows_in_window : row;
        // A phase on gfx950 reads rows 0-3 and 12-15 of one piece and 4-11 of the adjacent piece, or the complement: groups of
        // four rows, which fill a window, are permuted as 0, 2, 3, 1.
        if constexpr (rows_in_window == 4) change = (change << 1) ^ (change & 2 ? 7 : 0);
        return row * row_bytes + (piece ^ (change & most)) * b128_bytes;
    }
    KITTENS_DEVICE shared_byte* weight_at(int row) const {
        return lds + query_bytes + row * static_cast<int>(sizeof(float));
    }

    // Stores the heads of a token from `head` on, with weights, to rows from `row` on. Past the last head: zeros.
    KITTENS_DEVICE void put_rows(int token, int head, int row) const {
        const int count = padded(static_cast<int>(arguments.heads) - head);
        const int64_t at = row_of(token);
        const auto q = (global<const char>)arguments.q + at * arguments.q_token_bytes;
        const auto weights = (global<const float>)arguments.weights + at * arguments.weight_token_step;
        for (int i = thread_id(); i < count * row_pieces; i += threads) {
            const int each = head + i / row_pieces, piece = i % row_pieces;
            Piece value = 0;
            if (each < static_cast<int>(arguments.heads))
                value = load_piece(q + each * arguments.q_head_bytes + piece * b128_bytes);
            lds_write(value, lds + place(piece, row + i / row_pieces));
        }
        for (int i = thread_id(); i < count; i += threads) {
            float weight = 0;
            if (head + i < static_cast<int>(arguments.heads))
                weight = weights[(head + i) * arguments.weight_head_step];
            lds_write(weight, weight_at(row + i));
        }
    }

    // Loads the keys from `key` on.
    KITTENS_DEVICE void load_keys(int key) {
        const auto k = (global<const char>)arguments.k;
        const auto table = (global<const int32_t>)arguments.table + sequence * arguments.table_step;
        int slot[key_tiles];
        global<const char> page[key_tiles];
#pragma unroll
        for (int tile = 0; tile < key_tiles; ++tile) {
            slot[tile] = range.nearest(key + tile * 16 + lane_id() % 16);
            page[tile] = k;
            if constexpr (config.paged) {
                const uint32_t number = arguments.page.quotient(slot[tile]);
                slot[tile] -= number * arguments.page.value;
                page[tile] += table[number] * arguments.page_bytes;
            }
        }
        key_scale = 1;
        if constexpr (config.scales_in_pages()) {
            global<const char> of_lane = page[0];
            int slot_of_lane = slot[0];
#pragma unroll
            for (int tile = 1; tile < key_tiles; ++tile) {
                of_lane = lane_id() / 16 == tile ? page[tile] : of_lane;
                slot_of_lane = lane_id() / 16 == tile ? slot[tile] : slot_of_lane;
            }
            of_lane += static_cast<uint64_t>(arguments.page.value) * row_bytes;
            key_scale = ((global<const float>)of_lane)[slot_of_lane];
        } else if (!config.paged && arguments.key_scale) {
            key_scale = ((global<const float>)
                             arguments.key_scale)[range.nearest(key + lane_id()) * arguments.key_scale_step];
        }
#pragma unroll
        for (int tile = 0; tile < key_tiles; ++tile) {
            const auto row = page[tile] + slot[tile] * arguments.slot_bytes + lane_id() / 16 * b128_bytes;
#pragma unroll
            for (int n = 0; n < pieces; ++n) keys[tile][n] = load_piece(row + n * 4 * b128_bytes);
        }
    }

    KITTENS_DEVICE static vec<float, 4> product(const Row& a, const Row& b) {
        vec<float, 4> sum = 0.0f;
        if constexpr (is_16bit<T>) {
            using operand = vec<T, 8>;
#pragma unroll
            for (int n = 0; n < pieces; ++n)
                sum = matrix_16x16<T>(__builtin_bit_cast(operand, a[n]), __builtin_bit_cast(operand, b[n]),
                                      sum);
        } else if constexpr (target.matrix_k_8bit == 128 && pieces == 2) {
            using operand = vec<T, 32>;
            const auto joined = [](const Row& row) {
                return __builtin_bit_cast(operand,
                                          __builtin_shufflevector(row[0], row[1], 0, 1, 2, 3, 4, 5, 6, 7));
            };
            sum = matrix_16x16(joined(a), joined(b), sum);
        } else {
            using operand = vec<T, 16>;
#pragma unroll
            for (int n = 0; n < pieces; ++n)
                sum = matrix_16x16(__builtin_bit_cast(operand, a[n]), __builtin_bit_cast(operand, b[n]), sum);
        }
        return sum;
    }

    // Clamps negative values to 0; NaN passes through. gfx950 has one instruction for it.
    KITTENS_DEVICE static float cut_off(float value) {
        if constexpr (target.number == 950)
            return __builtin_elementwise_maximum(value, 0.0f);
        else
            return value < 0.0f ? 0.0f : value;
    }

    // Adds the contribution of `count` rows in LDS from `row` on, for the lane's part of them.
    KITTENS_DEVICE void add(vec<float, 2> (&sums)[key_tiles], int row, int count) const {
        for (int past = row + count; row < past; row += 16) {
            Row q;
#pragma unroll
            for (int n = 0; n < pieces; ++n)
                q[n] = lds_read<Piece>(lds + place(4 * n + lane_id() / 16, row + lane_id() % 16));
            const vec<float, 4> weight = lds_read<vec<float, 4>>(weight_at(row + lane_id() / 16 * 4));
#pragma unroll
            for (int tile = 0; tile < key_tiles; ++tile) {
                vec<float, 4> each = product(q, keys[tile]);
#pragma unroll
                for (int e = 0; e < 4; ++e) each[e] = cut_off(each[e]);
                sums[tile] = __builtin_elementwise_fma(each.lo, weight.lo, sums[tile]);
                sums[tile] = __builtin_elementwise_fma(each.hi, weight.hi, sums[tile]);
            }
        }
    }

    // The sum for key l over the four lanes that have parts of it: each lane keeps two tiles of four, then one of the two.
    KITTENS_DEVICE static float total_of_lane(const vec<float, 2> (&sums)[key_tiles]) {
        float part[key_tiles];
#pragma unroll
        for (int tile = 0; tile < key_tiles; ++tile) part[tile] = sums[tile][0] + sums[tile][1];
        const bool upper = lane_id() >= 32, odd = lane_id() / 16 % 2;
        float half[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const float kept = upper ? part[2 + n] : part[n], given = upper ? part[n] : part[2 + n];
            half[n] = kept + exchange_32(given);
        }
        const float kept = odd ? half[1] : half[0], given = odd ? half[0] : half[1];
        return kept + exchange_16(given);
    }

    KITTENS_DEVICE void store(int token, int key, const KeyRange& seen, float value) const {
        key += lane_id();
        const bool is_seen = seen.has(key);
        if (key >= static_cast<int>(arguments.keys) || (!is_seen && !arguments.clean)) return;
        const auto out = (global<float>)arguments.out + row_of(token) * arguments.out_step;
        out[key] = is_seen ? value : -__builtin_inff();
    }
};

}  // namespace hipkittens::logits
